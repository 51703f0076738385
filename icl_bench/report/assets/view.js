// -- one task, one model, or everything -------------------------------------------------------

function chooser(name, title, names) {
  const select = make("select", { name },
    make("option", { value: EVERY }, `all ${name}s`), ...names.map((one) => make("option", { value: one }, one)));
  select.addEventListener("change", () => {
    address.write({ [name]: select.value, at: "", row: "" }, { push: true });
    showOpened();
  });
  return make("label", {}, title, select);
}

function setView() {
  const form = $("nav .view");
  form.replaceChildren();
  if (data.tasks.length > 1) form.append(chooser("task", "Task", data.tasks));
  if (data.models.length > 1) form.append(chooser("model", "Model", data.models));
  form.hidden = !form.childElementCount;
}

function showOpened({ reader: withReader = true } = {}) {
  const open = opened();
  for (const figure of $$("#report figure")) {
    const several = rowsAbout(Number($(".chart", figure).dataset.chart), { model: "" }).some((row) => row.model !== undefined);
    const model = several ? undefined : figure.dataset.model;
    figure.hidden = !about({ task: figure.dataset.task, model }, open) ||
      (several && !rowsAbout(Number($(".chart", figure).dataset.chart), open).length);
  }
  for (const legend of Object.values(legends)) legend.show(open);
  redrawOfModel(open);
  for (const article of $$("#report article")) article.hidden = !about(article.dataset, open);
  for (const more of $$("#report .more")) {
    const count = $$("article:not([hidden])", more).length;
    more.hidden = !count;
    const chosen = Boolean(open.task || open.model);
    if (chosen) more.open = true;
    $("summary", more).hidden = chosen;
    $("summary", more).textContent = `${count} more`;
  }
  filterTables(open);
  for (const section of $$("#report > section[data-finding], #findings, #answer")) {
    const parts = $$("figure, details.numbers, article", section);
    section.hidden = parts.length > 0 && parts.every((part) => part.hidden);
    for (const controls of $$(".legend, form.costs", section)) controls.hidden = !$("figure:not([hidden])", section);
    const link = $(`nav a[href="#${CSS.escape(section.id)}"]`);
    if (link) link.parentElement.hidden = section.hidden;
  }
  for (const name of ["task", "model"]) {
    const select = $(`nav .view [name="${name}"]`);
    if (select) select.value = open[name] || EVERY;
  }
  for (const link of $$(".matrix a")) {
    const { task, model } = link.dataset;
    const here = task === open.task && (model || "") === open.model;
    if (here) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  const words = [open.task, open.model].filter(Boolean);
  const status = $("#shown");
  if (status) {
    $("b", status).textContent = words.length ? words.join(" · ") : "all tasks and models";
    $("a", status).hidden = !words.length;
  }
  if (reader && withReader) reader.show();
}

function goTo(id) {
  const target = document.getElementById(id);
  if (!target) return;
  target.scrollIntoView();
  const focus = $("h2", target) || target;
  focus.setAttribute("tabindex", "-1");
  focus.focus({ preventScroll: true });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const wanted = link.getAttribute("href").slice(1);
  if (wanted.includes("=")) return; // of the matrix: the address changes, and with it what is shown
  event.preventDefault();
  $("nav").removeAttribute("data-open");
  address.write({ at: wanted }, { push: true });
  goTo(wanted);
});

// Where one is: the section whose beginning was passed last.
const beginnings = new IntersectionObserver(() => markHere(), { rootMargin: "-20% 0px -70% 0px" });

function markHere() {
  const line = innerHeight * 0.3;
  let here = null;
  for (const link of $$("nav li:not([hidden]) a")) {
    const section = document.getElementById(link.getAttribute("href").slice(1));
    if (section && !section.hidden && section.getBoundingClientRect().top <= line) here = link;
  }
  for (const link of $$("nav a[aria-current]")) link.removeAttribute("aria-current");
  if (here) here.setAttribute("aria-current", "true");
  $("nav .here").textContent = here ? here.textContent : "Sections";
}

function watchSections() {
  beginnings.disconnect();
  for (const section of $$("main section")) beginnings.observe(section);
  markHere();
}

$("nav .here").addEventListener("click", () => {
  const open = $("nav").toggleAttribute("data-open");
  $("nav .here").setAttribute("aria-expanded", String(open));
});

addEventListener("hashchange", () => {
  const parts = address.read();
  showOpened();
  showPicked();
  showCosts();
  for (const legend of Object.values(legends)) {
    legend.take();
    legend.tell();
  }
  if (parts.at) goTo(parts.at);
  else if (parts.row) return; // the reader goes to it
  else if (parts.task || parts.model) goTo("shown");
});
