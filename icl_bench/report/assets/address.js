// What is shown is in the address: the task and the model that page and reader are about, the section,
// the points and curves of charts, the predictions that are asked for, the one that is read. Whoever
// opens the same address sees the same.

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

// The rows of a chart that are about the model: those of charts of several models name theirs.
const rowsAbout = (number, open) => rowsOfModel(data.charts[number].spec.datasets.rows, open);

function rowsOfModel(rows, { model }) {
  return model ? rows.filter((row) => row.model === undefined || row.model === model || row.base_model === model) : rows;
}

const about = (names, { task, model }) =>
  (!task || !names.task || names.task === task) && (!model || !names.model || names.model === model);
