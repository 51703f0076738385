// -- tables -----------------------------------------------------------------------------------

function rowsOf(table, open) {
  const of = (name) => table.columns.findIndex((column) => column.name === name);
  const [task, model] = [of("task"), of("model")];
  return table.rows.map((_, i) => i).filter((i) => about({
    task: task < 0 ? null : table.rows[i][task], model: model < 0 ? null : table.rows[i][model],
  }, open));
}

// How many rows a table has about what is open, also those that are not in the page.
function countOf(table, open) {
  const counted = table.counts.filter(([task, model]) => about({ task, model }, open));
  return table.counts.length ? counted.reduce((sum, [, , count]) => sum + count, 0) : rowsOf(table, open).length;
}

function fill(box) {
  const table = data.tables[Number(box.dataset.table)];
  const body = make("tbody");
  const more = make("p", { class: "found" });
  let sorted = null;
  let order = [];

  function draw() {
    order = rowsOf(table, opened());
    const count = countOf(table, opened());
    more.textContent = order.length < count ? `${whole.format(order.length)} of ${whole.format(count)} rows: the first of each task and model.` : "";
    if (sorted) {
      const { column, down } = sorted;
      order.sort((a, b) => {
        const [x, y] = [table.rows[a][column], table.rows[b][column]];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return (down ? -1 : 1) * compare(x, y) || a - b;
      });
    }
    body.replaceChildren(...order.map((row) => make("tr", {}, ...table.rows[row].map((value, i) => {
      const { kind, unit } = table.columns[i];
      const side = kind === "text" || kind === "flag" ? "text" : "number";
      return make("td", { class: side }, shown(unit && value !== null ? value / unit : value, kind));
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
      sorted = { column: i, down };
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
  box.replaceChildren(scroll, csv, more);
  box.redraw = draw;
}

function setTables() {
  for (const box of $$("main .table")) {
    const folded = box.closest("details");
    if (!folded) fill(box);
    else folded.addEventListener("toggle", () => folded.open && !box.redraw && fill(box));
  }
}

function filterTables(open) {
  for (const box of $$("main .table")) {
    const table = data.tables[Number(box.dataset.table)];
    const count = countOf(table, open);
    const folded = box.closest("details");
    if (box.closest("#failed")) {
      $("#failed").hidden = !count;
      $('nav a[href="#failed"]').parentElement.hidden = !count;
    }
    if (folded) {
      folded.hidden = !count && table.rows.length > 0;
      $(".count", folded).textContent = ` · ${whole.format(count)} ${count === 1 ? "row" : "rows"}`;
    }
    if (box.redraw) box.redraw();
  }
}
