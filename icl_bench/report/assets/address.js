// What is shown stands in the address: the task and the model that the page is about, the section,
// the predictions that are asked for. Whoever opens the same address sees the same.

const EVERY = "*";

const address = {
  read() {
    const text = location.hash.slice(1);
    if (text.includes("=")) return Object.fromEntries(new URLSearchParams(text));
    return text ? { at: decodeURIComponent(text) } : {};
  },
  write(changes, { push = false } = {}) {
    const parts = Object.entries({ ...address.read(), ...changes }).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const hash = parts.length ? `#${new URLSearchParams(parts)}` : "#";
    if (hash === (location.hash || "#")) return;
    history[push ? "pushState" : "replaceState"](null, "", hash);
  },
};

// Many charts at once are more than anybody looks at: then the first task is opened.
const MOST_CHARTS = 24;

function opened() {
  const { task, model } = address.read();
  const known = (value, names) => (names.includes(value) ? value : "");
  const several = data.tasks.length > 1 && data.charts.length > MOST_CHARTS;
  const first = several && model === undefined ? data.tasks[0] : "";
  return {
    task: task === undefined ? first : known(task, data.tasks),
    model: known(model, data.models),
  };
}

const about = (names, { task, model }) =>
  (!task || !names.task || names.task === task) && (!model || !names.model || names.model === model);
