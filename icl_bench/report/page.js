"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Text becomes nodes, never markup: names and texts are whatever the data holds.
  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  function save(name, kind, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // -- numbers ----------------------------------------------------------------------------------

  const whole = new Intl.NumberFormat("en-GB");

  // The rule of rounded() in icl_bench/wording.py: of two that are as near the even one.
  function rounded(value, digits) {
    const scaled = Number((value * 10 ** digits).toPrecision(12));
    const below = Math.floor(scaled);
    const nearest = scaled - below === 0.5 ? below + Math.abs(below % 2) : Math.round(scaled);
    return (nearest / 10 ** digits + 0).toFixed(digits);
  }

  function threeDigits(value) {
    if (value === 0 || Math.abs(value) >= 99.95) return whole.format(rounded(value, 0));
    const text = rounded(value, Math.min(2 - Math.floor(Math.log10(Math.abs(value))), 12));
    return text.replace(/0+$/, "").replace(/\.$/, "");
  }

  const points = (text) => (text.startsWith("-") ? text.replace("-", "−") : `+${text}`);
  const SHOWN = {
    text: (value) => String(value),
    flag: (value) => (value ? "yes" : "no"),
    count: (value) => whole.format(rounded(value, 0)),
    number: threeDigits,
    share: (value) => `${rounded(100 * value, 1)}%`,
    points: (value) => points(rounded(100 * value, 1)),
    p: (value) => (value < 0.001 ? "<0.001" : rounded(value, 3)),
  };
  const show = (value, kind) => (value === null || value === "" ? "–" : SHOWN[kind](value));

  // -- tables -----------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });

  function compare(a, b) {
    if (typeof a === "string" || typeof b === "string") return collator.compare(String(a), String(b));
    return Number(a) - Number(b);
  }

  function fill(box) {
    if (box.childElementCount) return;
    const table = data.tables[Number(box.dataset.table)];
    const body = make("tbody");
    const order = table.rows.map((_, i) => i);

    function draw() {
      body.replaceChildren(...order.map((row) => make("tr", {}, ...table.rows[row].map((value, i) => {
        const kind = table.columns[i].kind;
        const side = kind === "text" || kind === "flag" ? "text" : "number";
        return make("td", { class: side }, show(value, kind));
      }))));
    }

    const heads = table.columns.map((column, i) => {
      const arrow = make("span", { "aria-hidden": "true" });
      const button = make("button", { type: "button" }, column.title + " ", arrow);
      const head = make("th", {
        scope: "col", "aria-sort": "none",
        class: column.kind === "text" || column.kind === "flag" ? "text" : "number",
      }, button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) {
          other.setAttribute("aria-sort", "none");
          $("span", other).textContent = "";
        }
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        arrow.textContent = down ? "▼" : "▲";
        order.sort((a, b) => {
          const [x, y] = [table.rows[a][i], table.rows[b][i]];
          if (x === null || y === null) return (x === null) - (y === null) || a - b;
          return (down ? -1 : 1) * compare(x, y) || a - b;
        });
        draw();
      });
      return head;
    });
    draw();
    const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.caption },
      make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
    const csv = make("button", { type: "button", class: "save" }, "Save as CSV");
    csv.addEventListener("click", () => {
      const cell = (value) => (value === null ? "" : /[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
      const lines = [table.columns.map((c) => c.name), ...order.map((row) => table.rows[row])];
      save(`${table.caption}.csv`, "text/csv", lines.map((line) => line.map(cell).join(",") + "\n").join(""));
    });
    box.append(scroll, csv);
    if (table.rows.length < table.total) {
      box.append(make("p", { class: "found" },
        `The first ${whole.format(table.rows.length)} of ${whole.format(table.total)} rows.`));
    }
  }

  for (const box of $$(".table")) {
    const folded = box.closest("details");
    if (folded) folded.addEventListener("toggle", () => folded.open && fill(box));
    else fill(box);
  }

  // -- charts -----------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => data.themes[dark.matches ? "dark" : "light"];
  const hidden = {};
  const picked = {};
  const views = new Map();
  for (const [name, legend] of Object.entries(data.legends)) hidden[name] = new Set(legend.hidden);

  async function draw(box) {
    const number = Number(box.dataset.chart);
    const { spec } = data.charts[number];
    const section = box.dataset.section;
    const values = { hidden: section && [...hidden[section]], point: picked[number] };
    const params = (spec.params || []).map((p) => (values[p.name] === undefined ? p : { ...p, value: values[p.name] }));
    const config = { ...theme(), legend: { ...theme().legend, disable: Boolean(section) } };
    if (views.has(number)) views.get(number).finalize();
    const result = await vegaEmbed(box, { ...spec, params, config }, {
      actions: false, renderer: "svg", mode: "vega-lite", tooltip: { theme: "custom" }, ast: false,
    });
    views.set(number, result);
    box.dataset.drawn = "true";
  }

  let turn = 0;
  async function drawAll() {
    const mine = ++turn;
    for (const box of $$(".chart")) {
      if (mine !== turn) return;
      try {
        await draw(box);
      } catch (error) {
        box.textContent = `This chart could not be drawn: ${error.message}`;
        console.error(error);
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
  }

  function signal(number, name, value) {
    const found = views.get(number);
    if (found) found.view.signal(name, value).runAsync();
  }

  for (const select of $$("select[data-pick]")) {
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

  for (const slider of $$("input[data-slide]")) {
    const number = Number(slider.dataset.slide);
    const { spec, choices } = data.charts[number];
    const shown = $("output", slider.closest("label"));
    picked[number] = spec.params.find((p) => p.name === "point").value;
    slider.value = choices.findIndex((choice) => choice.value === picked[number]);
    const say = () => {
      const choice = choices[Number(slider.value)];
      shown.textContent = choice.text;
      slider.setAttribute("aria-valuetext", choice.text);
      picked[number] = choice.value;
    };
    say();
    slider.addEventListener("input", () => {
      say();
      signal(number, "point", picked[number]);
    });
  }

  for (const button of $$("[data-save]")) {
    button.setAttribute("aria-label", `Save as SVG: ${$("h3", button.closest("figure")).textContent}`);
    button.addEventListener("click", async () => {
      const found = views.get(Number(button.dataset.save));
      if (found) save(`${button.dataset.name}.svg`, "image/svg+xml", await found.view.toSVG());
    });
  }

  // -- legends ----------------------------------------------------------------------------------

  const PATHS = {
    circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0", square: "M-3.6-3.6H3.6V3.6H-3.6Z",
    "triangle-up": "M0-4.4L4.4 3.6H-4.4Z", "triangle-down": "M0 4.4L4.4-3.6H-4.4Z",
    diamond: "M0-5L5 0L0 5L-5 0Z", cross: "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
    "triangle-right": "M4.4 0L-3.6 4.4V-4.4Z",
  };

  function swatch(place) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    const [line, mark] = [document.createElementNS(space, "line"), document.createElementNS(space, "path")];
    for (const [name, value] of Object.entries({ width: 30, height: 12, viewBox: "-15 -6 30 12", "aria-hidden": "true" })) svg.setAttribute(name, value);
    const dash = data.dashes[place % data.dashes.length];
    for (const [name, value] of Object.entries({ x1: -15, x2: 15, "stroke-width": 1.8, "stroke-dasharray": dash[1] ? dash.join(" ") : "none" })) line.setAttribute(name, value);
    mark.setAttribute("d", PATHS[data.shapes[place % data.shapes.length]]);
    svg.append(line, mark);
    return svg;
  }

  function paint() {
    const colours = theme().range.category;
    for (const button of $$(".legend button")) {
      const colour = colours[Number(button.dataset.place) % colours.length];
      $("line", button).setAttribute("stroke", colour);
      $("path", button).setAttribute("fill", colour);
    }
  }

  for (const box of $$(".legend")) {
    const section = box.dataset.legend;
    data.legends[section].series.forEach((name, place) => {
      const button = make("button", {
        type: "button", "data-place": place, "aria-pressed": String(!hidden[section].has(name)),
      }, swatch(place), make("span", {}, name));
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!shown));
        if (shown) hidden[section].add(name);
        else hidden[section].delete(name);
        for (const chart of $$(`#${CSS.escape(section)} .chart`)) {
          signal(Number(chart.dataset.chart), "hidden", [...hidden[section]]);
        }
      });
      box.append(button);
    });
  }

  paint();
  drawAll();
  dark.addEventListener("change", () => { paint(); drawAll(); });

  // -- the reader -------------------------------------------------------------------------------

  const reader = $("#reader");
  if (reader) {
    const { texts, fields, rows, total, scores } = data.reader;
    const PAGE = 200;
    const place = Object.fromEntries(fields.map((name, i) => [name, i]));
    const get = (row, name) => row[place[name]];
    const text = (row, name) => (get(row, name) === null ? "" : texts[get(row, name)]);
    const perturbation = (row) => text(row, "teaching") || "unperturbed";
    const truth = { true: "right", false: "wrong", null: "free text" };
    const FILTERS = [
      ["task", "Task", (row) => text(row, "task")],
      ["model", "Model", (row) => text(row, "model")],
      ["series", "Curve", (row) => text(row, "series")],
      ["k", "k", (row) => get(row, "k")],
      ["correct", "Answer", (row) => truth[get(row, "correct")]],
    ];
    if (rows.some((row) => text(row, "teaching"))) FILTERS.splice(3, 0, ["teaching", "Demonstrations", perturbation]);
    const form = $(".filters", reader);
    const list = $(".list", reader);
    const controls = {};
    for (const [name, title, value] of FILTERS) {
      const values = [...new Set(rows.map(value))].sort(compare);
      const select = make("select", { name }, make("option", { value: "" }, "all"),
        ...values.map((v) => make("option", { value: String(v) }, typeof v === "number" ? whole.format(v) : v)));
      controls[name] = select;
      form.append(make("label", {}, title, select));
    }
    const search = make("input", { type: "search", name: "id", autocomplete: "off", spellcheck: "false" });
    form.append(make("label", {}, "Test id, right or given answer", search));

    let matches = [];
    let current = 0;
    let first = 0;

    function filter() {
      const word = search.value.trim().toLowerCase();
      const wanted = FILTERS.filter(([name]) => controls[name].value !== "");
      matches = rows.filter((row) =>
        wanted.every(([name, , value]) => String(value(row)) === controls[name].value) &&
        (!word || ["test_id", "gold", "prediction"].some((name) => text(row, name).toLowerCase().includes(word))));
      $(".found", reader).textContent = `${whole.format(matches.length)} of the ${whole.format(rows.length)} predictions here` +
        (rows.length < total ? ` (${whole.format(total)} in all)` : "") + (matches.length ? "." : ": none matches.");
      current = 0;
      render();
    }

    function render() {
      first = PAGE * Math.floor(current / PAGE);
      const page = matches.slice(first, first + PAGE);
      list.replaceChildren(...page.map((row, i) => {
        const verdict = truth[get(row, "correct")];
        const option = make("div", { role: "option", id: `p${first + i}`, class: "option", "aria-selected": "false" },
          make("span", { class: verdict === "free text" ? "" : verdict }, verdict === "right" ? "✓ " : verdict === "wrong" ? "✗ " : "",
            make("span", { class: "name" }, text(row, "prediction") || "(nothing)")),
          make("small", {}, `${text(row, "task")} · ${text(row, "model")} · ${text(row, "series")} · ${text(row, "teaching") && `${perturbation(row)} · `}k = ${whole.format(get(row, "k"))} · ${text(row, "test_id")}`));
        option.addEventListener("click", () => choose(first + i));
        return option;
      }));
      choose(current);
    }

    function choose(number) {
      current = Math.max(0, Math.min(number, matches.length - 1));
      if (matches.length && (current < first || current >= first + PAGE)) return render();
      for (const option of $$('[aria-selected="true"]', list)) option.setAttribute("aria-selected", "false");
      const option = document.getElementById(`p${current}`);
      for (const button of $$("[data-step]", reader)) {
        const next = current + Number(button.dataset.step);
        button.setAttribute("aria-disabled", String(next < 0 || next >= matches.length));
      }
      if (!matches.length || !option) {
        list.removeAttribute("aria-activedescendant");
        $(".shown", reader).replaceChildren();
        return undefined;
      }
      option.setAttribute("aria-selected", "true");
      list.setAttribute("aria-activedescendant", option.id);
      const [top, bottom] = [option.offsetTop - list.offsetTop, option.offsetTop - list.offsetTop + option.offsetHeight];
      if (top < list.scrollTop) list.scrollTop = top;
      else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
      $(".shown", reader).replaceChildren(...detail(matches[current]));
      return undefined;
    }

    function detail(row) {
      const verdict = truth[get(row, "correct")];
      const said = text(row, "prediction");
      const written = get(row, "text") === null ? null : text(row, "text");
      const golds = get(row, "golds") === null ? [text(row, "gold")] : get(row, "golds").map((n) => texts[n]);
      const facts = [
        ["Said", said || (written === null || get(row, "valid") === false ? "(nothing)" : "(no answer)")],
        [golds.length > 1 ? "Right answers" : "Right answer", golds.map((gold) => gold || "(no answer)").join(" | ")],
        ["Test example", text(row, "test_id")], ["Task", text(row, "task")], ["Model", text(row, "model")],
        ["Curve", text(row, "series")], ["k", `${whole.format(get(row, "k"))}, draw ${get(row, "draw")}`],
      ];
      if (text(row, "teaching")) facts.push(["Demonstrations", perturbation(row)]);
      if (written !== null) facts.splice(1, 0, ["Written", written.trim() || "(nothing)"]);
      if (get(row, "valid") === false) facts.push(["Validity", written === null ? "the answer is none of the labels" : "nothing could be extracted from what was written"]);
      const probability = get(row, "probability");
      if (probability !== null) {
        facts.push(["Probability", SHOWN.share(probability)]);
        if (get(row, "margin") !== null) facts.push(["Next label's", SHOWN.share(Math.max(probability - get(row, "margin"), 0))]);
        if (get(row, "label_mass") !== null) facts.push(["All labels together", SHOWN.share(get(row, "label_mass"))]);
      }
      for (const [name, title] of scores) {
        if (get(row, name) !== null) facts.push([title, SHOWN.share(get(row, name))]);
      }
      if (get(row, "prompt_tokens") !== null) {
        const cached = get(row, "cached_tokens");
        facts.push(["Prompt", `${whole.format(get(row, "prompt_tokens"))} tokens${cached === null ? "" : `, ${whole.format(cached)} of them cached`}`]);
      }
      const parts = [
        make("p", { class: `verdict ${verdict === "free text" ? "" : verdict}` }, verdict === "right" ? "✓ Right" : verdict === "wrong" ? "✗ Wrong" : "Free text"),
        make("dl", { class: "pairs" }, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
      ];
      if (get(row, "query") !== null) {
        const shown = get(row, "shown").map((n) => texts[n]);
        const separator = text(row, "separator");
        const rest = get(row, "count") - shown.length;
        const pre = make("pre", {});
        if (rest > 0) pre.append(make("span", { class: "cut" }, `[${whole.format(rest)} more demonstration${rest === 1 ? "" : "s"} before]`), separator);
        pre.append(...shown.map((one) => one + separator), text(row, "query"), make("span", { class: `said ${verdict}` }, written === null ? ` ${said}` : written));
        parts.push(make("h3", {}, "The prompt's end, and the answer"), pre);
      }
      if (get(row, "why") !== null) parts.push(make("p", { class: "found" }, text(row, "why")));
      const listed = get(row, "listed");
      if (listed.length) {
        const all = get(row, "count");
        const title = listed.length < all ? `The last ${listed.length} of ${whole.format(all)} demonstrations` : "The demonstrations";
        parts.push(make("details", {}, make("summary", {}, `${title}, last one next to the query`),
          make("ol", { class: "plain", start: all - listed.length + 1 },
            ...listed.map(([id, answer]) => make("li", {}, texts[answer] ? `${texts[answer]} ` : "", make("code", {}, texts[id]))))));
      }
      if (get(row, "query") !== null) {
        const quote = (word) => (/^[\w.,:/@-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
        parts.push(make("p", { class: "found" }, "The whole prompt, checked against the hash of what was run: ",
          make("code", {}, `icl-bench show --task ${quote(text(row, "task"))} --k ${get(row, "k")} --draw ${get(row, "draw")} --cell ${text(row, "cell")} --test-id ${quote(text(row, "test_id"))}`)));
      }
      return parts;
    }

    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    list.addEventListener("keydown", (event) => {
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -matches.length, End: matches.length };
      if (!(event.key in steps)) return;
      event.preventDefault();
      choose(current + steps[event.key]);
    });
    for (const button of $$("[data-step]", reader)) {
      button.addEventListener("click", () => choose(current + Number(button.dataset.step)));
    }
    filter();
  }
})();
