// What everything on the page uses: its data, elements, numbers.

let data = JSON.parse(document.getElementById("data").textContent);
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
const shown = (value, kind) => (value === null || value === "" ? "–" : SHOWN[kind](value));

const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  if (typeof a === "string" || typeof b === "string") return collator.compare(String(a), String(b));
  return Number(a) - Number(b);
}
