// -- charts: drawn when they come into view ---------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;
const theme = () => data.themes[dark.matches && !printing ? "dark" : "light"];
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

const OF_MANY = ["line", "area", "trail"]; // marks of several points

async function draw(box) {
  const number = Number(box.dataset.chart);
  const spec = atOwnCost(number) || data.charts[number].spec;
  const section = box.dataset.section;
  const open = opened();
  const rows = rowsOfModel(spec.datasets.rows, open);
  box.dataset.about = open.model;
  const values = { ...(section && legends[section].signals()), point: picked[number] };
  const params = (spec.params || []).map((p) => (values[p.name] === undefined ? p : { ...p, value: values[p.name] }));
  const config = { ...theme(), legend: { ...theme().legend, disable: Boolean(section) } };
  if (views.has(number)) views.get(number).finalize();
  const result = await vegaEmbed(box, { ...inTheme(spec), datasets: { ...spec.datasets, rows }, params, config }, {
    actions: false, renderer: "svg", mode: "vega-lite", tooltip: { theme: "custom" }, ast: false,
  });
  views.set(number, result);
  unnamed(box);
  result.view.addEventListener("click", (_, item) => item && item.datum && !OF_MANY.includes(item.mark.marktype) && lookInto(item.datum));
  box.dataset.drawn = "true";
  box.dataset.rows = rows.length;
}

// Layers without a mark would be symbols without a name for who cannot see them.
function unnamed(box) {
  for (const group of $$('svg g[role="graphics-symbol"]', box)) {
    if (!group.hasAttribute("aria-label")) group.toggleAttribute("data-empty", !group.childElementCount);
  }
  for (const group of $$("svg g[data-empty]", box)) group.removeAttribute("role");
}

async function shownAnew(box, view) {
  await view.runAsync();
  unnamed(box);
}

// Charts of several models have the rows of the one that the page is about.
function redrawOfModel(open) {
  for (const box of $$("#report .chart[data-about]")) {
    const [before, now] = [{ model: box.dataset.about }, open].map((one) => rowsAbout(Number(box.dataset.chart), one));
    if (before.length !== now.length || before.some((row, i) => row !== now[i])) waiting.add(box);
  }
  drawWaiting();
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

// The point that a chart shows, as the address has it, else its first one.
const pickers = {};
const pickName = (number) => `show:${data.charts[number].name}`;

function showPicked() {
  const asked = address.read();
  for (const number of Object.keys(pickers)) {
    const { spec, choices } = data.charts[number];
    const value = asked[pickName(number)];
    const first = spec.params.find((p) => p.name === "point").value;
    const before = picked[number];
    picked[number] = choices.some((choice) => choice.value === value) ? value : first;
    pickers[number](picked[number]);
    if (picked[number] !== before) signal(number, "point", picked[number]);
  }
}

function pick(number, value) {
  picked[number] = value;
  pickers[number](value);
  signal(number, "point", value);
  address.write({ [pickName(number)]: value });
}

function signal(number, name, value) {
  const found = views.get(number);
  if (found && atOwnCost(number)) {
    waiting.add($(`#report .chart[data-chart="${number}"]`));
    drawWaiting();
  } else if (found) shownAnew($(`#report .chart[data-chart="${number}"]`), found.view.signal(name, value));
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
  for (const number of Object.keys(pickers)) delete pickers[number];
  for (const select of $$("#report select[data-pick]")) {
    const number = Number(select.dataset.pick);
    for (const choice of data.charts[number].choices) select.append(make("option", { value: choice.value }, choice.text));
    pickers[number] = (value) => { select.value = value; };
    select.addEventListener("change", () => pick(number, select.value));
  }
  for (const slider of $$("#report input[data-slide]")) {
    const number = Number(slider.dataset.slide);
    const { choices } = data.charts[number];
    const said = $("output", slider.closest("label"));
    pickers[number] = (value) => {
      const place = choices.findIndex((choice) => choice.value === value);
      slider.value = place;
      said.textContent = choices[place].text;
      slider.setAttribute("aria-valuetext", choices[place].text);
    };
    slider.addEventListener("input", () => pick(number, choices[Number(slider.value)].value));
  }
  showPicked();
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

// -- printing: all charts, on white; what is folded is opened

const printed = { folded: [] };

// A page is printed as soon as this listener is done, and the promises that are settled without a timer: drawing a
// chart needs no timer, a pause between charts would.
addEventListener("beforeprint", () => {
  printing = true;
  paint();
  printed.folded = $$("#report details:not([open])").filter((folded) => !folded.hidden);
  for (const folded of printed.folded) {
    folded.open = true;
    for (const box of $$(".table", folded)) if (!box.redraw) fill(box);
  }
  for (const box of $$("#report .chart").filter((one) => one.offsetParent && (dark.matches || !one.dataset.drawn))) {
    waiting.delete(box);
    drawn(box);
  }
});

addEventListener("afterprint", () => {
  printing = false;
  paint();
  for (const folded of printed.folded) folded.open = false;
  if (dark.matches) redrawAll();
});
