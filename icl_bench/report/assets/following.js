// -- a served page follows its results folder -------------------------------------------------

const EVERY_SECONDS = 2;

class Following {
  constructor() {
    this.status = $(".following");
    this.shown = Number(this.status.dataset.revision); // whose findings the page has; -1 if none
    this.ask();
  }

  async ask() {
    try {
      const response = await fetch("state");
      if (!response.ok) throw new Error(String(response.status));
      await this.take(await response.json());
    } catch (error) {
      this.say("The program that serves this page has ended; what is here stays.");
      console.warn(error);
    }
    setTimeout(() => this.ask(), 1000 * EVERY_SECONDS);
  }

  async take(state) {
    if (state.report !== null && state.report > this.shown) await this.swap(state.report);
    if (!state.reading && state.predictions !== reader.source.total) {
      reader.source.total = reader.source.here = state.predictions;
      await reader.renew();
    }
    const behind = state.report === null || state.report < state.revision;
    const grown = state.report !== null && behind ? "New cells are finished: " : "";
    this.say(state.problem ? `The findings could not be worked out: ${state.problem}`
      : state.reading ? `Reading the results: ${whole.format(state.files_read)} of ${whole.format(state.files)} files.`
        : behind ? `${grown}the findings of ${whole.format(state.predictions)} predictions are being worked out; the predictions are here already.` : "");
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  // What draws charts: a page that was there before its findings came without it.
  async library() {
    if (window.vegaEmbed) return;
    const script = make("script", { src: "library.js" });
    await new Promise((done, failed) => {
      script.addEventListener("load", done);
      script.addEventListener("error", failed);
      document.head.append(script);
    });
  }

  // The findings anew; the reader, and where one is, stay.
  async swap(revision) {
    await this.library();
    const text = await (await fetch("report")).text();
    const made = new DOMParser().parseFromString(text, "text/html");
    const fixed = [$("#reader"), ...$$("#report > section")].filter(Boolean)
      .map((section) => [section.id, section.getBoundingClientRect().top])
      .find(([, top]) => top > -200);
    const away = scrollY > 0;
    data = JSON.parse(made.getElementById("data").textContent);
    for (const place of [".lead", "#sections", "#report", "#rest"]) $(place).replaceWith(document.adoptNode($(place, made)));
    document.title = made.title;
    this.shown = revision;
    setReport();
    const again = fixed && document.getElementById(fixed[0]);
    if (away && again) scrollBy({ top: again.getBoundingClientRect().top - fixed[1], behavior: "instant" });
    const { at } = address.read();
    if (!away && at) goTo(at);
  }
}
