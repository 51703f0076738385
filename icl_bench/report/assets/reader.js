// -- the reader: single predictions, of a sample in the page or all of a server's --------------

const VERDICT = { true: "right", false: "wrong", null: "free text" };
const NOTHING = "(nothing)"; // an empty answer, where one is chosen
const perturbation = (row) => row.perturbation || "unperturbed";

// Predictions that stand in the page.
function sampled({ texts, fields, rows, total }) {
  const TEXTS = ["task", "model", "series", "select", "order", "perturbation", "test_id", "gold", "prediction", "cell", "query", "separator", "why", "text"];
  const named = rows.map((row) => {
    const found = Object.fromEntries(fields.map((name, i) => [name, row[i]]));
    for (const name of TEXTS) found[name] = found[name] === null ? null : texts[found[name]];
    found.shown = found.shown.map((n) => texts[n]);
    found.listed = found.listed.map(([id, answer]) => [texts[id], texts[answer]]);
    found.golds = found.golds && found.golds.map((n) => texts[n]);
    return found;
  });
  for (const row of named) row.question = row.query === null ? "" : row.query;
  const has = (row, word) => ["test_id", "gold", "prediction", "text", "query"].some((name) => (row[name] || "").toLowerCase().includes(word));
  const KEYS = {
    perturbation: perturbation, correct: (row) => VERDICT[row.correct],
    gold: (row) => row.gold || NOTHING, prediction: (row) => row.prediction || NOTHING,
  };
  const value = (row, name) => String((KEYS[name] || ((one) => one[name]))(row));
  return {
    total,
    here: named.length,
    paired: false,
    async options() {
      const names = ["task", "model", "series", "perturbation", "k", "correct", "gold", "prediction"];
      return Object.fromEntries(names.map((name) => [name, [...new Set(named.map((row) => value(row, name)))].sort(compare)]));
    },
    async page(asked, first, count) {
      const word = (asked.word || "").trim().toLowerCase();
      const wanted = Object.entries(asked).filter(([name, given]) => name !== "word" && name !== "sort" && given !== "");
      const found = named.filter((row) => wanted.every(([name, given]) => value(row, name) === given) && (!word || has(row, word)));
      const [by, sign] = sortOf(asked.sort);
      if (by) found.sort((a, b) => sign * compare(a[by] ?? "", b[by] ?? ""));
      return { total: found.length, rows: found.slice(first, first + count) };
    },
    async detail(row) { return row; },
    async one(cell, test) { return named.find((row) => row.cell === cell && row.test_id === test) || null; },
  };
}

// All predictions, of the program that serves this page.
function served({ total }) {
  async function ask(path, asked = {}) {
    const given = Object.entries(asked).filter(([, value]) => value !== "" && value !== undefined);
    const response = await fetch(`${path}?${new URLSearchParams(given)}`);
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    return response.json();
  }
  return {
    total,
    here: total,
    paired: true,
    options: () => ask("options"),
    page: (asked, first, count) => ask("predictions", { ...asked, first, count }),
    detail: (row) => ask("prediction", { cell: row.cell, test_id: row.test_id, draw: row.draw }),
    one: (cell, test_id) => ask("prediction", { cell, test_id }).catch((error) => {
      if (error.message.startsWith("404 ")) return null;
      throw error;
    }),
  };
}

// A column's name, with a minus for the largest first -> the column and its direction.
const sortOf = (sort = "") => (sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1]);
const SORTS = [["correct", "✓/✗"], ["prediction", "Given answer"], ["gold", "Right answer"], ["question", "Question"], ["k", "k"]];

const FILTERS = [
  ["task", "Task"], ["model", "Model"], ["series", "Curve"], ["perturbation", "Perturbation"], ["k", "k"],
  ["correct", "Answer"], ["gold", "Right answer"], ["prediction", "Given answer"],
];
const BESIDE = [["model", "Model"], ["series", "Curve"], ["k", "k"]];
const FLIPS = [
  ["", "all pairs"], ["lost", "right here, wrong there"], ["won", "wrong here, right there"], ["changed", "another answer"],
];
const PAGE_ROWS = 200;
const MOST_SHOWN = 400; // letters of a question in the list
// Of more values than this none can be found in a list.
const MOST_OPTIONS = 400;

class Reader {
  constructor(section, source) {
    this.section = section;
    this.source = source;
    source.say = (text) => { $(".found", section).textContent = text; };
    this.form = $(".filters", section);
    this.list = $(".list", section);
    this.found = { total: 0, rows: [] };
    this.first = 0;
    this.current = 0;
    this.turn = 0;
    this.controls = {};
    this.sort = "";
    this.heads = SORTS.map(([name, title]) => {
      const button = make("button", { type: "button", "data-sort": name }, title, make("span", { "aria-hidden": "true" }));
      button.addEventListener("click", () => this.sortBy(name));
      return button;
    });
    $(".heads", section).replaceChildren(...this.heads);
    this.form.addEventListener("input", () => this.filterSoon());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.list.addEventListener("keydown", (event) => {
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
      if (!(event.key in steps)) return;
      event.preventDefault();
      this.choose(this.current + steps[event.key], true);
    });
    for (const button of $$("[data-step]", section)) {
      button.addEventListener("click", () => this.choose(this.current + Number(button.dataset.step), true));
    }
    this.ready = this.begin();
  }

  async begin() {
    if (await this.alone(async () => (await this.fillIn(), true))) await this.follow({ anew: true });
  }

  async fillIn() {
    const options = this.options = await this.source.options();
    this.form.replaceChildren();
    this.controls = {};
    const select = (name, title, values, every) => {
      const control = make("select", { name }, make("option", { value: "" }, every), ...values.map((v) => this.offer(name, v)));
      this.controls[name] = control;
      const label = make("label", {}, title, control);
      label.hidden = !values.length;
      this.form.append(label);
    };
    for (const [name, title] of FILTERS) {
      const values = options[name];
      select(name, title, values.length > 1 && values.length <= MOST_OPTIONS ? values : [], "all");
    }
    const word = make("input", { type: "search", name: "word", autocomplete: "off", spellcheck: "false" });
    this.controls.word = word;
    this.form.append(make("label", { class: "word" }, "In question, answers or test id", word));
    if (this.source.paired) {
      const row = make("fieldset", { class: "beside" }, make("legend", {}, "Beside another point"));
      const form = this.form;
      this.form = row;
      for (const [name, title] of BESIDE) if (options[name].length > 1) select(`other_${name}`, title, options[name], "the same");
      this.form = form;
      const flips = make("select", { name: "flips" }, ...FLIPS.map(([value, text]) => make("option", { value }, text)));
      this.controls.flips = flips;
      row.append(make("label", {}, "Pairs", flips));
      if (row.childElementCount > 2) form.append(row);
    }
  }

  offer(name, value) {
    return make("option", { value }, name.endsWith("k") && /^\d+$/.test(value) ? whole.format(value) : value);
  }

  // Set a filter. One of too many values, or a value that the predictions do not have, is offered from then on.
  set(name, value) {
    const control = this.controls[name];
    const asked = this.options[name]?.length === 1 && this.options[name][0] === value ? "" : value; // what all have
    control.value = asked;
    if (control.value === asked) return;
    control.append(this.offer(name, asked));
    control.value = asked;
    control.closest("label").hidden = false;
  }

  // There are other predictions than before: what is asked for and what is read stay.
  async renew() {
    const asked = this.asked();
    await this.fillIn();
    for (const [name, value] of Object.entries(asked)) if (this.controls[name]) this.set(name, value);
    await this.alone(async (mine) => {
      if (!(await this.turnTo(this.first, mine))) return;
      this.say();
      const read = this.reading;
      const place = read ? this.placeOf(read) : this.first;
      if (place >= 0) await this.choose(place);
    });
  }

  // What the address asks for: the page's task and model, which are the reader's, too; its other
  // filters; a prediction. What is shown already stays as it is read.
  async show() {
    await this.ready;
    await this.follow();
  }

  async follow({ anew = false } = {}) {
    if (this.soon) return; // what was just typed comes after it
    const open = opened();
    const { row = "", ...asked } = { ...address.read(), ...open };
    const sort = SORTS.some(([name]) => name === sortOf(asked.sort)[0]) ? asked.sort : "";
    let changed = anew || sort !== this.sort;
    this.setSort(sort);
    for (const [name, control] of Object.entries(this.controls)) {
      const value = asked[name] && asked[name] !== EVERY ? asked[name] : "";
      const had = control.value;
      if (name === "flips" && !FLIPS.some(([flip]) => flip === value)) control.value = "";
      else this.set(name, value);
      changed ||= control.value !== had;
    }
    const other = row !== this.row;
    this.row = row;
    if (changed) await this.filter(row);
    else if (row && other) await this.alone((mine) => this.openRow(row, mine));
  }

  asked() {
    const given = Object.entries(this.controls).map(([name, control]) => [name, control.value]);
    return { ...Object.fromEntries(given.filter(([, value]) => value)), ...(this.sort && { sort: this.sort }) };
  }

  // Ascending, then descending, then as they are stored.
  sortBy(name) {
    this.setSort({ [name]: `-${name}`, [`-${name}`]: "" }[this.sort] ?? name);
    this.row = "";
    address.write({ sort: this.sort, row: "", at: "reader" });
    this.filter();
  }

  setSort(sort) {
    this.sort = sort;
    const [by, sign] = sortOf(sort);
    for (const button of this.heads) {
      const here = button.dataset.sort === by;
      const way = sign > 0 ? "ascending" : "descending";
      button.setAttribute("aria-pressed", String(here));
      $("span", button).textContent = here ? (sign > 0 ? " ▲" : " ▼") : "";
      button.setAttribute("aria-label", `Sort by ${button.dataset.sort === "correct" ? "right or wrong" : button.firstChild.textContent.toLowerCase()}${here ? `, ${way}` : ""}`);
    }
  }

  filterSoon() {
    clearTimeout(this.soon);
    this.section.setAttribute("aria-busy", "true");
    this.soon = setTimeout(() => {
      this.soon = null;
      this.row = "";
      this.keep();
      this.filter();
    }, 120);
  }

  // The filters go into the address. Task and model are those of the whole page.
  keep({ push = false } = {}) {
    const { task: _, model: __, ...asked } = this.asked();
    const before = opened();
    const open = {};
    for (const name of ["task", "model"]) {
      const control = this.controls[name];
      if (control && control.value !== before[name]) open[name] = control.value || EVERY;
    }
    const none = Object.fromEntries(Object.keys(this.controls).filter((name) => name !== "task" && name !== "model").map((name) => [name, ""]));
    address.write({ ...none, ...asked, ...open, row: "", at: "reader" }, { push });
    if (Object.keys(open).length) showOpened({ reader: false });
  }

  // The latest that was asked for is shown, and says when it is there.
  async alone(show) {
    const mine = ++this.turn;
    this.section.setAttribute("aria-busy", "true");
    try {
      return await show(mine);
    } catch (error) {
      if (mine === this.turn) $(".found", this.section).textContent = `The predictions could not be read: ${error.message}`;
      return false;
    } finally {
      if (mine === this.turn) this.section.removeAttribute("aria-busy");
    }
  }

  // The predictions that the filters let through, and the first of them, or the one of an address.
  filter(row = "") {
    return this.alone(async (mine) => {
      if (!(await this.turnTo(0, mine))) return;
      this.say();
      this.list.scrollTop = 0;
      if (row) await this.openRow(row, mine);
      else await this.choose(0);
    });
  }

  say() {
    const { total, pairs } = this.found;
    const { here, total: all } = this.source;
    const text = `${whole.format(total)} of ${here < all ? "the" : "all"} ${whole.format(here)} predictions${here < all ? " here" : ""}` +
      (here < all ? ` (${whole.format(all)} in all)` : "") + (total ? "." : ": none matches.");
    const flipped = pairs ? ` Of ${whole.format(pairs.total)} pairs ${whole.format(pairs.both)} are right on both sides, ${whole.format(pairs.neither)} on neither, ` +
      `${whole.format(pairs.lost)} right only here, ${whole.format(pairs.won)} right only there` +
      (pairs.without_verdict ? `, ${whole.format(pairs.without_verdict)} with an answer that is neither right nor wrong` : "") +
      (pairs.unpaired ? `; ${whole.format(pairs.unpaired)} predictions have none beside them.` : ".") +
      (pairs.p === null ? "" : ` p of no difference: ${SHOWN.p(pairs.p)} (exact sign-flip test over test rows, of which ${whole.format(pairs.flipped)} differ; McNemar's test where each has one pair). It holds for these demonstrations, not for others, and is not corrected for further comparisons.`) : "";
    $(".found", this.section).textContent = text + flipped;
  }

  // Fetch and list the predictions from this one on; false if something else was asked for since.
  async turnTo(first, mine) {
    const found = await this.source.page(this.asked(), first, PAGE_ROWS);
    if (mine !== this.turn) return false;
    this.found = found;
    this.first = first;
    this.list.replaceChildren(...found.rows.map((row, i) => this.option(row, first + i)));
    return true;
  }

  // Where a prediction stands among those found, if it is listed; else -1.
  placeOf({ cell, test_id }) {
    const listed = this.found.rows.findIndex((row) => row.cell === cell && row.test_id === test_id);
    return listed < 0 ? -1 : this.first + listed;
  }

  option(row, number) {
    const verdict = VERDICT[row.correct];
    const answer = (one) => make("span", { class: VERDICT[one.correct] === "free text" ? "" : VERDICT[one.correct] },
      one.correct === true ? "✓ " : one.correct === false ? "✗ " : "", make("span", { class: "name" }, one.prediction || NOTHING));
    const places = [row.task, row.model, row.series, row.perturbation && perturbation(row), `k = ${whole.format(row.k)}`, row.test_id].filter(Boolean);
    const given = make("span", { class: "given" }, answer(row), ...(row.other ? [" → ", answer(row.other)] : []));
    const question = (row.question || "").trim();
    const option = make("div", { role: "option", id: `p${number}`, class: "option", "aria-selected": "false" },
      given, " ", make("span", { class: "gold" }, make("span", { class: "sr" }, "right answer "), row.gold || NOTHING), " ",
      make("span", { class: "question" }, question.length > MOST_SHOWN ? `${question.slice(0, MOST_SHOWN)}…` : question), " ", make("small", {}, places.join(" · ")));
    option.addEventListener("click", () => this.choose(number, true));
    option.dataset.verdict = verdict;
    return option;
  }

  // ``own``: the reader of the page chose it, so that the address has it.
  async choose(number, own = false) {
    const { total } = this.found;
    this.current = Math.max(0, Math.min(number, total - 1));
    if (total && (this.current < this.first || this.current >= this.first + this.found.rows.length)) {
      const first = PAGE_ROWS * Math.floor(this.current / PAGE_ROWS);
      if (!(await this.alone((mine) => this.turnTo(first, mine)))) return;
    }
    for (const option of $$('[aria-selected="true"]', this.list)) option.setAttribute("aria-selected", "false");
    const option = document.getElementById(`p${this.current}`);
    for (const button of $$("[data-step]", this.section)) {
      const next = this.current + Number(button.dataset.step);
      button.setAttribute("aria-disabled", String(next < 0 || next >= total));
    }
    if (!total || !option) {
      this.list.removeAttribute("aria-activedescendant");
      $(".shown", this.section).replaceChildren();
      return;
    }
    option.setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", option.id);
    const top = option.offsetTop - this.list.offsetTop;
    const bottom = top + option.offsetHeight;
    if (top < this.list.scrollTop) this.list.scrollTop = top;
    else if (bottom > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = bottom - this.list.clientHeight;
    const row = this.found.rows[this.current - this.first];
    if (own) {
      this.row = `${row.cell}:${row.test_id}`;
      address.write({ row: this.row, at: "reader" });
    }
    await this.read(row);
  }

  async read(row) {
    const mine = (this.reading = row);
    const wanted = [row, row.other].filter(Boolean).map((one) => this.source.detail(one));
    const both = await Promise.all(wanted).catch((error) => error);
    if (mine !== this.reading) return;
    if (both instanceof Error) {
      $(".shown", this.section).replaceChildren(make("p", { class: "found" }, `The prediction could not be read: ${both.message}`));
      return;
    }
    const sides = both.map((one) => make("div", {}, ...detail(one, this.source)));
    $(".shown", this.section).replaceChildren(make("div", { class: sides.length > 1 ? "sides" : "" }, ...sides));
  }

  // A prediction of its own address: CELL:TEST.
  async openRow(name, mine) {
    const [cell, ...test] = name.split(":");
    const row = await this.source.one(cell, test.join(":"));
    if (mine !== this.turn) return;
    const place = row ? this.placeOf(row) : -1;
    if (place >= 0) await this.choose(place);
    else if (row) await this.read(row);
    else $(".shown", this.section).replaceChildren(make("p", { class: "found" }, `The prediction ${name} is not ${this.source.paired ? "in the results" : "in this page's sample"}.`));
    const { at } = address.read();
    if (!at) goTo("reader");
  }

  // Set these filters, and no others but the page's own.
  async look(wanted) {
    await this.ready;
    const { task, model } = opened();
    const all = { task, model, ...wanted };
    for (const name of Object.keys(this.controls)) this.set(name, all[name] === undefined ? "" : String(all[name]));
    this.row = "";
    this.keep({ push: true });
    await this.filter();
    goTo("reader");
  }
}

// A point of a chart, or a pair of a confusion: its predictions. Points that are computed from others have none.
function lookInto(datum) {
  const filters = data.lists[datum.listed ?? -1];
  const k = datum.k ?? /, k = ([\d,]+)$/.exec(datum.point || "")?.[1].replaceAll(",", "");
  if (!reader || !filters || k === undefined) return;
  const [task, model, series, perturbation] = filters;
  const wanted = { task, model, series, perturbation, k };
  if (datum.pair) Object.assign(wanted, { gold: datum.gold || NOTHING, prediction: datum.prediction || NOTHING, correct: datum.gold === datum.prediction ? "right" : "wrong" });
  reader.look(wanted);
}

function detail(row, source) {
  const verdict = VERDICT[row.correct];
  const said = row.prediction;
  const written = row.text;
  const golds = row.golds === null ? [row.gold] : row.golds;
  const facts = [
    ["Said", said || (written === null || row.valid === false ? "(nothing)" : "(no answer)")],
    [golds.length > 1 ? "Right answers" : "Right answer", golds.map((gold) => gold || "(no answer)").join(" | ")],
    ["Test row", row.test_id], ["Task", row.task], ["Model", row.model],
    ["Curve", row.series], ["k", `${whole.format(row.k)}, draw ${row.draw}`],
  ];
  if (row.perturbation) facts.push(["Perturbation", perturbation(row)]);
  if (written !== null) facts.splice(1, 0, ["Written", written.trim() || "(nothing)"]);
  if (row.valid === false) facts.push(["Validity", written === null ? "the answer is none of the labels" : "nothing could be extracted from what was written"]);
  if (row.probability !== null) {
    facts.push(["Probability", SHOWN.share(row.probability)]);
    if (row.margin !== null) facts.push(["Next label's", SHOWN.share(Math.max(row.probability - row.margin, 0))]);
    if (row.label_mass !== null) facts.push(["All labels together", SHOWN.share(row.label_mass)]);
  }
  for (const [name, title] of data.reader.scores) {
    if (row[name] !== null) facts.push([title, SHOWN.share(row[name])]);
  }
  if (row.prompt_tokens !== null) {
    facts.push(["Prompt", `${whole.format(row.prompt_tokens)} tokens${row.cached_tokens === null ? "" : `, ${whole.format(row.cached_tokens)} of them cached`}`]);
  }
  const link = make("a", { href: `#row=${encodeURIComponent(`${row.cell}:${row.test_id}`)}`, class: "own" }, "Address of this prediction");
  const parts = [
    make("p", { class: `verdict ${verdict === "free text" ? "" : verdict}` }, verdict === "right" ? "✓ Right" : verdict === "wrong" ? "✗ Wrong" : "Free text"),
    make("dl", { class: "pairs" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
  ];
  if (row.query !== null) {
    const rest = row.count - row.shown.length;
    const pre = make("pre", {});
    if (rest > 0) pre.append(make("span", { class: "cut" }, `[${whole.format(rest)} more demonstration${rest === 1 ? "" : "s"} before]`), row.separator);
    pre.append(...row.shown.map((one) => one + row.separator), row.query, make("span", { class: `said ${verdict}` }, written === null ? ` ${said}` : written));
    parts.push(make("h3", {}, "The prompt's end, and the answer"), pre);
  }
  if (row.why) parts.push(make("p", { class: "found" }, row.why));
  if (row.listed.length) {
    const title = row.listed.length < row.count ? `The last ${row.listed.length} of ${whole.format(row.count)} demonstrations` : "The demonstrations";
    parts.push(make("details", {}, make("summary", {}, `${title}, last one next to the query`),
      make("ol", { class: "plain", start: row.count - row.listed.length + 1 },
        ...row.listed.map(([id, answer]) => make("li", {}, answer ? `${answer} ` : "", make("code", {}, id))))));
  }
  if (row.query !== null) {
    const quote = (word) => (/^[\w.,:/@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
    parts.push(make("p", { class: "found" }, row.why ? "In the terminal: " : "The whole prompt, checked against the hash of what was run: ",
      make("code", {}, `icl-bench show --task ${quote(row.task)} --k ${row.k} --draw ${row.draw} --cell ${row.cell} --test-id ${quote(row.test_id)}${data.place.map((word) => ` ${quote(word)}`).join("")}`)));
  }
  parts.push(make("p", { class: "found" }, link));
  return parts;
}

let reader = null;

function setReader() {
  const section = $("#reader");
  const source = data.reader.served ? served : data.reader.index ? published : sampled;
  if (section) reader = new Reader(section, source(data.reader));
}
