// -- charts: drawn when they come into view ---------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => data.themes[dark.matches ? "dark" : "light"];
const legends = {};
const picked = {};
const views = new Map();

// Colours of series stand in the charts as on light ground.
function coloured(value) {
  const [from, to] = [data.themes.light.range.category, theme().range.category];
  if (typeof value === "string") return from.includes(value) ? to[from.indexOf(value)] : value;
  return value;
}

function inTheme(node) {
  if (Array.isArray(node)) return node.map(inTheme);
  if (!node || typeof node !== "object") return node;
  return Object.fromEntries(Object.entries(node).map(([name, value]) =>
    [name, name === "datasets" ? value : name === "range" && Array.isArray(value) ? value.map(coloured) : inTheme(value)]));
}

async function draw(box) {
  const number = Number(box.dataset.chart);
  const { spec } = data.charts[number];
  const section = box.dataset.section;
  const values = { ...(section && legends[section].signals()), point: picked[number] };
  const params = (spec.params || []).map((p) => (values[p.name] === undefined ? p : { ...p, value: values[p.name] }));
  const config = { ...theme(), legend: { ...theme().legend, disable: Boolean(section) } };
  if (views.has(number)) views.get(number).finalize();
  const result = await vegaEmbed(box, { ...inTheme(spec), params, config }, {
    actions: false, renderer: "svg", mode: "vega-lite", tooltip: { theme: "custom" }, ast: false,
  });
  views.set(number, result);
  result.view.addEventListener("click", (_, item) => item && item.datum && lookInto(data.charts[number], item.datum));
  box.dataset.drawn = "true";
}

async function drawn(box) {
  try {
    await draw(box);
  } catch (error) {
    box.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  }
}

// One after the other, so that the page answers in between.
const waiting = new Set();
let drawing = false;

async function drawWaiting() {
  if (drawing) return;
  drawing = true;
  while (waiting.size) {
    const [box] = waiting;
    waiting.delete(box);
    if (box.isConnected) await drawn(box);
    await new Promise((resolve) => setTimeout(resolve));
  }
  drawing = false;
}

const inView = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting && !target.dataset.drawn) waiting.add(target);
    else if (!isIntersecting) waiting.delete(target);
  }
  drawWaiting();
}, { rootMargin: "250px 0px" });

function redrawAll() {
  for (const box of $$("#report .chart[data-drawn]")) waiting.add(box);
  drawWaiting();
}

function signal(number, name, value) {
  const found = views.get(number);
  if (found) found.view.signal(name, value).runAsync();
}

function setCharts() {
  for (const { view } of views.values()) view.finalize();
  views.clear();
  inView.disconnect();
  for (const box of $$("#report .chart")) {
    const { spec } = data.charts[Number(box.dataset.chart)];
    box.style.minHeight = `${(Number(spec.height) || 250) + 50}px`;
    inView.observe(box);
  }
  for (const select of $$("#report select[data-pick]")) {
    const number = Number(select.dataset.pick);
    const { spec, choices } = data.charts[number];
    picked[number] = spec.params.find((p) => p.name === "point").value;
    for (const choice of choices) {
      const option = make("option", { value: choice.value }, choice.text);
      option.selected = choice.value === picked[number];
      select.append(option);
    }
    select.addEventListener("change", () => {
      picked[number] = select.value;
      signal(number, "point", select.value);
    });
  }
  for (const slider of $$("#report input[data-slide]")) {
    const number = Number(slider.dataset.slide);
    const { spec, choices } = data.charts[number];
    const said = $("output", slider.closest("label"));
    picked[number] = spec.params.find((p) => p.name === "point").value;
    slider.value = choices.findIndex((choice) => choice.value === picked[number]);
    const say = () => {
      const choice = choices[Number(slider.value)];
      said.textContent = choice.text;
      slider.setAttribute("aria-valuetext", choice.text);
      picked[number] = choice.value;
    };
    say();
    slider.addEventListener("input", () => {
      say();
      signal(number, "point", picked[number]);
    });
  }
  for (const button of $$("#report [data-save]")) {
    const figure = button.closest("figure");
    button.setAttribute("aria-label", `Save as SVG: ${$("h3", figure).textContent}`);
    button.addEventListener("click", async () => {
      const number = Number(button.dataset.save);
      if (!views.has(number)) await drawn($(".chart", figure));
      if (views.has(number)) save(`${button.dataset.name}.svg`, "image/svg+xml", await views.get(number).view.toSVG());
    });
  }
}

dark.addEventListener("change", () => { paint(); redrawAll(); });
addEventListener("beforeprint", () => {
  for (const box of $$("#report .chart:not([data-drawn])")) if (box.offsetParent) waiting.add(box);
  drawWaiting();
});
