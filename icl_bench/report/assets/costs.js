// -- the frontier at the reader's own cost: icl_bench/analysis/query_cost.py, frontier.py and statistics/dominance.py --

const PRICED = [["input", "Input"], ["cached", "Cached"], ["output", "Output"], ["hour", "Machine, an hour"]];

// What the reader chose, as the address has it: a measure, prices as --price writes them, a number of queries.
function ownCost() {
  const { cost = "", price = "", queries = "" } = address.read();
  const prices = {};
  for (const word of price.split(",")) {
    const [name, value] = word.split("=");
    if (["input", "cached", "output", "write", "hour"].includes(name) && value !== "" && Number(value) >= 0) prices[name] = Number(value);
  }
  const count = Math.round(Number(queries));
  return { cost: data.cost_axes[cost] ? cost : "", prices, queries: count >= 1 && count <= 1e15 ? count : null };
}

const ofTokens = (prices) => ["input", "cached", "output"].every((name) => prices[name] !== undefined);

function costOf(point, measure, prices, queries) {
  const taken = (name) => {
    const i = data.cost_parts.indexOf(name);
    return point.each[i] === null || point.once[i] === null ? NaN : point.each[i] + point.once[i] / queries;
  };
  if (measure !== "money") return taken(measure);
  if (prices.hour !== undefined && (point.here || !ofTokens(prices))) return prices.hour * taken("hour");
  if (!ofTokens(prices)) return NaN;
  const { input, cached, output, write = input } = prices;
  return input * taken("input") + cached * taken("cached") + output * taken("output") + write * taken("write");
}

// Whether a chart can show a cost. Tokens of different models are not the same.
const offers = ({ points }, measure) => measure === "money" || points.some((point) =>
  costOf(point, measure, {}, 1) > 0 && !(measure === "tokens" && point.model !== undefined));

// Which points no other dominates by their means: undominated().
function undominated(scores, costs) {
  const on = scores.map(() => false);
  let best = -Infinity; // of all that costs less
  for (const amount of [...new Set(costs)].filter((cost) => !Number.isNaN(cost)).sort((a, b) => a - b)) {
    const alike = [...costs.keys()].filter((i) => costs[i] === amount);
    const top = Math.max(...alike.map((i) => scores[i]));
    for (const i of alike) on[i] = scores[i] === top && top > best;
    best = Math.max(best, top);
  }
  return on;
}

function holm(values) {
  const order = [...values.keys()].filter((i) => values[i] !== null).sort((a, b) => values[a] - values[b] || a - b);
  const adjusted = values.map(() => null);
  let most = 0;
  order.forEach((i, place) => { most = Math.max(most, values[i] * (order.length - place)); adjusted[i] = Math.min(most, 1); });
  return adjusted;
}

// Each point's verdict and its p value: dominance(). Null where the cost is not known.
function dominance(leads, costs) {
  const rivals = costs.map((cost, i) => [...costs.keys()].filter((j) => j !== i && costs[j] <= cost));
  const tested = (of) => holm(rivals.map((others, i) => (others.length ? of(i, others) : null)));
  const on = tested((i, others) => Math.max(...others.map((j) => leads[i][j])));
  const dominated = tested((i, others) => Math.min(Math.min(...others.map((j) => leads[j][i])) * others.length, 1));
  return costs.map((cost, i) => {
    if (Number.isNaN(cost)) return { verdict: null, p: null };
    const [one, other] = rivals[i].length ? [on[i], dominated[i]] : [0, 1];
    return { verdict: one <= data.alpha ? "on the frontier" : other <= data.alpha ? "dominated" : "undecided", p: Math.min(one, other) };
  });
}

// The rows of a chart at these costs, as icl_bench/report/sections/prompts.py makes them for its own.
function rowsAtCost(costs, measure, prices, queries, point) {
  const unit = data.cost_axes[measure][2];
  const refused = measure === "money" && costs.needs_hour && prices.hour === undefined; // as --price refuses it
  const amounts = costs.points.map((one) => (refused ? NaN : costOf(one, measure, prices, queries)));
  const verdicts = dominance(costs.p_leads, costs.tested.map((i) => amounts[i]));
  const shown_ = [...costs.points.keys()].filter((i) => amounts[i] > 0);
  const compared = shown_.filter((i) => !costs.points[i].other_tests);
  const on = undominated(compared.map((i) => costs.points[i].value), compared.map((i) => amounts[i]));
  const ends = shown_.map((i) => amounts[i]);
  const middle = Math.sqrt(Math.min(...ends) * Math.max(...ends));
  return shown_.map((i) => {
    const { each: _, once: __, here: ___, other_tests: ____, ...row } = costs.points[i];
    const { verdict, p } = verdicts[costs.tested.indexOf(i)] || { verdict: null, p: null };
    const texts = ["value", "low", "high"].filter((name) => row[name] !== null).map((name) => [`${name}_text`, SHOWN.share(row[name])]);
    texts.push(["cost_text", SHOWN.number(amounts[i] / unit)]);
    return {
      ...row, ...Object.fromEntries(texts), point, cost: amounts[i] / unit, verdict: verdict || "not compared", p: verdict && p,
      on: on[compared.indexOf(i)] || false, left: amounts[i] > middle,
    };
  });
}

// A chart's specification at the reader's own cost; null where the page's own stands.
function atOwnCost(number) {
  const { costs, spec } = data.charts[number];
  const { cost, prices, queries } = ownCost();
  if (!costs) return null;
  const measure = cost && offers(costs, cost) ? cost : costs.first;
  if (!queries && measure === costs.first) return null;
  const point = picked[number];
  const rows = rowsAtCost(costs, measure, prices, queries || Number(point.replace(/\D/g, "")), point);
  const [title, format] = data.cost_axes[measure];
  const amounts = rows.map((row) => row.cost);
  const domain = rows.length ? [Math.min(...amounts) / 1.25, Math.max(...amounts) * 1.25] : [1, 10];
  const layer = spec.layer.map(({ encoding, ...rest }) => {
    const changed = { ...encoding };
    if (changed.x) changed.x = { ...changed.x, title: `${title} (log scale)`, axis: { ...changed.x.axis, format }, scale: { ...changed.x.scale, domain } };
    if (changed.tooltip) changed.tooltip = changed.tooltip.map((one) => (one.field === "cost_text" ? { ...one, title } : one));
    return { ...rest, encoding: changed };
  });
  return { ...spec, layer, datasets: { ...spec.datasets, rows } };
}

// -- its controls, in each section that has such charts

function costForm(charts) {
  const known = Object.keys(data.cost_axes).filter((measure) => charts.some(({ costs }) => offers(costs, measure)));
  const options = known.map((measure) => make("option", { value: measure }, data.cost_axes[measure][0].replace(/ a query/, "")));
  const firsts = new Set(charts.map(({ costs }) => costs.first));
  if (firsts.size > 1) options.unshift(make("option", { value: "" }, "the first known"));
  const select = make("select", { name: "cost" }, ...options);
  const number = (name, title, more = {}) => make("label", {}, title, make("input", { name, type: "number", min: "0", step: "any", inputmode: "decimal", ...more }));
  const prices = make("fieldset", { class: "beside" }, make("legend", {}, "Price of a million tokens, or of an hour"), ...PRICED.map(([name, title]) => number(name, title)));
  const form = make("form", { class: "costs filters", "aria-label": "Cost of a query" }, make("label", {}, "Cost", select),
    number("queries", "My queries", { min: "1", step: "1", placeholder: "slider" }), prices, make("p", { class: "found", role: "status" }));
  form.dataset.first = firsts.size > 1 ? "" : charts[0].costs.first;
  form.dataset.mostTested = charts.map(({ costs }) => costs.most_tested).find(Boolean) || "";
  form.dataset.needsHour = charts.some(({ costs }) => costs.needs_hour) || "";
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    const { prices: before } = ownCost();
    const given = PRICED.map(([name]) => [name, form.elements[name].value]).filter(([, value]) => value !== "");
    if (before.write !== undefined) given.push(["write", before.write]);
    address.write({ cost: select.value === form.dataset.first ? "" : select.value, price: given.map((pair) => pair.join("=")).join(","), queries: form.elements.queries.value });
    showCosts();
  });
  return form;
}

function fillCosts(form) {
  const { cost, prices, queries } = ownCost();
  const { first, needsHour, mostTested } = form.dataset;
  const there = [...form.elements.cost.options].some((option) => option.value === cost);
  const fields = { cost: there ? cost : first, queries: queries ?? "", ...Object.fromEntries(PRICED.map(([name]) => [name, prices[name] ?? ""])) };
  for (const [name, value] of Object.entries(fields)) {
    const field = form.elements[name];
    if (field !== document.activeElement && field.value !== String(value)) field.value = value;
  }
  const money = form.elements.cost.value === "money";
  $("fieldset", form).hidden = !money;
  const without = money && prices.hour === undefined;
  $(".found", form).textContent = without && !ofTokens(prices)
    ? "Give the prices of input, cached and output tokens, of an hour of your machine, or all four."
    : without && needsHour ? "Give the price of an hour of your machine too."
      : mostTested && (queries || (cost && cost !== first)) ? `Charts of more than ${mostTested} points have no verdicts at a cost or number of queries of your own.` : "";
}

let costsShown = "";

// The forms and charts are as the address says.
function showCosts() {
  const now = JSON.stringify(ownCost());
  for (const form of $$("#report form.costs")) fillCosts(form);
  const { queries } = ownCost();
  for (const number of Object.keys(pickers).filter((one) => data.charts[one].costs)) {
    const slider = $(`#report input[data-slide="${number}"]`);
    slider.disabled = Boolean(queries);
    pickers[number](picked[number]);
    if (queries) $("output", slider.closest("label")).textContent = `${whole.format(queries)} ${queries === 1 ? "query" : "queries"}`;
  }
  if (now === costsShown) return;
  costsShown = now;
  for (const box of $$("#report .chart[data-drawn]")) if (data.charts[Number(box.dataset.chart)].costs) waiting.add(box);
  drawWaiting();
}

function setCosts() {
  costsShown = JSON.stringify(ownCost());
  for (const section of $$("#report > section[data-finding]")) {
    const charts = $$(".chart", section).map((box) => data.charts[Number(box.dataset.chart)]).filter(({ costs }) => costs);
    if (!charts.length) continue;
    $(".panels", section).before(costForm(charts));
  }
  showCosts();
}
