// -- legends: curves on and off, one out of all, intervals ------------------------------------

const PATHS = {
  circle: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0", square: "M-3.6-3.6H3.6V3.6H-3.6Z",
  "triangle-up": "M0-4.4L4.4 3.6H-4.4Z", "triangle-down": "M0 4.4L4.4-3.6H-4.4Z",
  diamond: "M0-5L5 0L0 5L-5 0Z", cross: "M-1.5-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
  "triangle-right": "M4.4 0L-3.6 4.4V-4.4Z",
};

function swatch(shape, line) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const [stroke, mark] = [document.createElementNS(space, "line"), document.createElementNS(space, "path")];
  for (const [name, value] of Object.entries({ width: 30, height: 12, viewBox: "-15 -6 30 12", "aria-hidden": "true" })) svg.setAttribute(name, value);
  const dash = data.dashes[line % data.dashes.length];
  for (const [name, value] of Object.entries({ x1: -15, x2: 15, "stroke-width": 1.8, "stroke-dasharray": dash[1] ? dash.join(" ") : "none" })) stroke.setAttribute(name, value);
  mark.setAttribute("d", PATHS[data.shapes[shape % data.shapes.length]]);
  svg.append(stroke, mark);
  return svg;
}

function paint() {
  const colours = theme().range.category;
  for (const chip of $$(".legend [data-slot]")) {
    const colour = colours[Number(chip.dataset.slot) % colours.length];
    $("line", chip).setAttribute("stroke", colour);
    $("path", chip).setAttribute("fill", colour);
  }
  for (const line of $$(".matrix polyline")) line.setAttribute("stroke", colours[Number(line.dataset.slot) % colours.length]);
}

class Legend {
  constructor(section, box) {
    const { series, colours, shapes, dashes, hidden, bands } = data.legends[section];
    this.section = section;
    this.series = series;
    this.first = hidden;
    this.pointed = "";
    this.take();
    const chips = series.map((name, i) => this.chip(name, colours[i], swatch(shapes[i], dashes[i])));
    box.replaceChildren(...chips);
    if (bands) {
      this.bands = make("button", { type: "button", class: "bands" }, "Intervals as bands");
      this.bands.addEventListener("click", () => {
        this.chosen = !this.signals().bands;
        this.keep();
      });
      box.append(this.bands);
    }
    this.box = box;
    this.mark();
  }

  chip(name, colour, mark) {
    const toggle = make("button", { type: "button", "data-slot": colour, "data-series": name }, mark, make("span", {}, name));
    toggle.addEventListener("click", () => {
      if (!this.hidden.delete(name)) this.hidden.add(name);
      this.keep();
    });
    const chip = make("span", { class: "chip" }, toggle);
    if (this.series.length > 1) {
      const only = make("button", { type: "button", class: "only", "data-only": name, title: "Let this curve stand out" }, "only");
      only.setAttribute("aria-label", `Only ${name}`);
      only.addEventListener("click", () => {
        this.single = this.single === name ? "" : name;
        this.hidden.delete(name);
        this.keep();
      });
      chip.append(only);
      for (const [event, pointed] of [["mouseenter", name], ["mouseleave", ""]]) {
        chip.addEventListener(event, () => {
          this.pointed = pointed;
          this.tell();
        });
      }
    }
    return chip;
  }

  // Which curves are switched off, which one stands out, and whether there are bands: as the address has it.
  take() {
    const asked = address.read();
    const of = (name) => asked[`${name}:${this.section}`];
    const names = (text) => { try { return JSON.parse(text); } catch { return this.first; } };
    const off = of("off") === undefined ? this.first : names(of("off"));
    this.hidden = new Set(this.series.filter((name) => Array.isArray(off) && off.includes(name)));
    this.single = this.series.includes(of("only")) ? of("only") : "";
    this.chosen = of("bands") === undefined ? null : of("bands") === "yes";
  }

  keep() {
    const off = this.series.filter((name) => this.hidden.has(name));
    const usual = JSON.stringify(off) === JSON.stringify(this.series.filter((name) => this.first.includes(name)));
    address.write({
      [`off:${this.section}`]: usual ? "" : JSON.stringify(off), [`only:${this.section}`]: this.single,
      [`bands:${this.section}`]: this.chosen === null ? "" : this.chosen ? "yes" : "no",
    });
    this.tell();
  }

  // Only curves that some chart in the section has.
  show(open) {
    const boxes = $$(`#${CSS.escape(this.section)} figure:not([hidden]) .chart`);
    const there = new Set(boxes.flatMap((box) => rowsAbout(Number(box.dataset.chart), open).map((row) => row.series)));
    for (const toggle of $$("[data-series]", this.box)) toggle.closest(".chip").hidden = there.size > 0 && !there.has(toggle.dataset.series);
  }

  signals() {
    const count = this.series.filter((name) => !this.hidden.has(name)).length;
    const pointed = this.hidden.has(this.pointed) ? "" : this.pointed;
    return {
      hidden: [...this.hidden], single: pointed || this.single,
      bands: this.chosen === null ? count <= data.most_bands : this.chosen,
    };
  }

  mark() {
    for (const button of $$("[data-series]", this.box)) button.setAttribute("aria-pressed", String(!this.hidden.has(button.dataset.series)));
    for (const button of $$("[data-only]", this.box)) button.setAttribute("aria-pressed", String(this.single === button.dataset.only));
    if (this.bands) this.bands.setAttribute("aria-pressed", String(this.signals().bands));
  }

  tell() {
    this.mark();
    const values = Object.entries(this.signals());
    for (const chart of $$(`#${CSS.escape(this.section)} .chart`)) {
      const found = views.get(Number(chart.dataset.chart));
      if (!found) continue;
      for (const [name, value] of values) found.view.signal(name, value);
      shownAnew(chart, found.view);
    }
  }
}

function setLegends() {
  for (const box of $$("#report .legend")) legends[box.dataset.legend] = new Legend(box.dataset.legend, box);
  paint();
}
