// -- all predictions, in files beside the page: what icl_bench/report/viewer answers, without a server --------------

const AT_ONCE = 8; // files that are read at the same time
const OF_CELLS = ["task", "model", "series", "perturbation", "k"];
const OF_ROWS = ["word", "correct", "gold", "prediction"];
const SIDE = ["model", "series", "perturbation", "k"];
const VERDICT_CODES = { wrong: 0, right: 1, "free text": -1 };
const UNPERTURBED = "unperturbed";

// A page of a disk may read no file, but run scripts: each calls this function with a compressed JSON value.
const arriving = new Map();
window.iclBench = (name, packed) => arriving.get(name)?.(packed);

async function dataFile(name) {
  if (!window.DecompressionStream) throw new Error("this browser cannot decompress files; use one of 2023 or later");
  const file = `predictions/${name}.js`;
  const script = make("script", { src: file });
  const packed = await new Promise((done, failed) => {
    arriving.set(name, done);
    script.addEventListener("error", () => failed(new Error(`${file} is not there: the folder is incomplete, or it was written again and the page has to be reloaded`)));
    script.addEventListener("load", () => failed(new Error(`${file} is damaged`))); // after it has run
    document.head.append(script);
  }).finally(() => { arriving.delete(name); script.remove(); });
  try {
    const text = atob(packed);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(unpacked).text());
  } catch {
    throw new Error(`${file} is damaged`);
  }
}

// Parts of a long list, each with its first number: which one has this number.
function partOf(firsts, number) {
  let [low, high] = [0, firsts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (firsts[middle] <= number) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Files of one kind: read when they are asked for, and kept.
class Parts {
  constructor(files, take) {
    this.names = files.map(([name]) => name);
    this.firsts = files.map(([, first]) => first);
    this.take = take;
    this.there = [];
    this.coming = [];
  }

  read(part) {
    this.coming[part] ??= dataFile(this.names[part]).then(
      (value) => { this.there[part] = this.take(value, this.firsts[part]); },
      (error) => { delete this.coming[part]; throw error; },
    );
    return this.coming[part];
  }

  async readAll(parts, say = () => {}) {
    const left = parts.filter((part) => !this.there[part]);
    for (let i = 0; i < left.length; i += AT_ONCE) {
      if (left.length > AT_ONCE) say(i, left.length);
      await Promise.all(left.slice(i, i + AT_ONCE).map((part) => this.read(part)));
    }
  }

  // A part that was read, and a number's place in it.
  at(number) {
    const part = partOf(this.firsts, number);
    return [this.there[part], number - this.firsts[part]];
  }

  async value(number) {
    await this.read(partOf(this.firsts, number));
    const [part, place] = this.at(number);
    return part[place];
  }
}

const codes = (values) => Uint32Array.from(values);
const different = (values) => [...new Set(values)];

function published({ index, total }) {
  const source = { total, here: total, paired: true, say: () => {} };
  let texts, cells, options, rows, examples, details, shownTexts;
  const begun = dataFile(index).then((found) => {
    ({ texts, cells, options } = found);
    const { files } = found;
    rows = new Parts(files.rows, (value, first) => ({
      ...value, first, example: codes(value.example), correct: Int8Array.from(value.correct),
      prediction: codes(value.prediction), text: value.text && codes(value.text),
    }));
    examples = new Parts(files.examples, (value) => value);
    details = new Parts(files.details, (value) => value);
    shownTexts = new Parts(files.texts, (value) => value);
  });

  const cellText = (name, cell) => texts[cells[name][cell]];
  const cellOf = (place) => partOf(cells.first, place);
  const endOf = (cell) => cells.first[cell + 1] ?? total;
  const ofCell = (name, cell) => (name === "k" ? String(cells.k[cell]) : name === "perturbation" ? cellText(name, cell) || UNPERTURBED : cellText(name, cell));
  const cellsWith = (asked) => {
    const wanted = OF_CELLS.filter((name) => asked[name]);
    return [...cells.first.keys()].filter((cell) => wanted.every((name) => ofCell(name, cell) === asked[name]));
  };

  // The rows of these cells, and what each of them was asked.
  async function load(found) {
    const parts = different(found.flatMap((cell) => {
      const [first, last] = [partOf(rows.firsts, cells.first[cell]), partOf(rows.firsts, endOf(cell) - 1)];
      return Array.from({ length: last - first + 1 }, (_, i) => first + i);
    }));
    await rows.readAll(parts, (read, of) => source.say(`Reading predictions: ${whole.format(read)} of ${whole.format(of)} files.`));
    await loadExamples(parts.map((part) => rows.there[part].example));
  }

  async function loadExamples(numbers) {
    const parts = new Set();
    for (const some of numbers) for (let i = 0, last = -1; i < some.length; i += 1) if (some[i] !== last) parts.add(partOf(examples.firsts, (last = some[i])));
    await examples.readAll([...parts], (read, of) => source.say(`Reading questions: ${whole.format(read)} of ${whole.format(of)} files.`));
  }

  // The places of the rows that all filters let through, in order.
  async function find(asked, found = cellsWith(asked)) {
    const word = (asked.word || "").trim().toLowerCase();
    const byRow = word || OF_ROWS.some((name) => name !== "word" && asked[name]);
    const places = [];
    if (!byRow) {
      for (const cell of found) for (let place = cells.first[cell]; place < endOf(cell); place += 1) places.push(place);
      return places;
    }
    await load(found);
    const lets = letsThrough(asked, word);
    for (const cell of found) {
      for (let place = cells.first[cell]; place < endOf(cell); place += 1) if (lets(place)) places.push(place);
    }
    return places;
  }

  // Whether a row passes the filters of rows; each different text is looked at once.
  function letsThrough(asked, word) {
    const known = new Map();
    const remembered = (part, name, say) => {
      if (!known.has(part)) known.set(part, {});
      return (known.get(part)[name] ??= say());
    };
    const has = (text) => text.toLowerCase().includes(word);
    const marks = (values, test) => Uint8Array.from(values, (value) => Number(test(value)));
    const same = (wanted) => (text) => (text || NOTHING) === wanted || text === wanted;
    return (place) => {
      const [part, i] = rows.at(place);
      if (asked.correct && part.correct[i] !== VERDICT_CODES[asked.correct]) return false;
      if (asked.prediction && !remembered(part, "prediction", () => marks(part.prediction_texts, same(asked.prediction)))[part.prediction[i]]) return false;
      const [of, j] = examples.at(part.example[i]);
      if (asked.gold && !remembered(of, "gold", () => marks(of.gold, same(asked.gold)))[j]) return false;
      if (!word) return true;
      return Boolean(remembered(of, "word", () => marks(of.gold.keys(), (n) => has(of.test_id[n]) || has(of.gold[n]) || has(of.question[n])))[j] ||
        remembered(part, "word", () => marks(part.prediction_texts, has))[part.prediction[i]] ||
        (part.text && remembered(part, "text", () => marks(part.text_texts, has))[part.text[i]]));
    };
  }

  const example = (place) => {
    const [part, i] = rows.at(place);
    return examples.at(part.example[i]);
  };
  const rank = (place) => {
    const [part, i] = rows.at(place);
    return part.prediction_ranks[part.prediction[i]];
  };
  const verdict = (place) => {
    const [part, i] = rows.at(place);
    return part.correct[i];
  };
  const KEYS = {
    correct: verdict,
    prediction: rank,
    gold: (place) => { const [of, i] = example(place); return of.gold_ranks[i]; },
    question: (place) => { const [of, i] = example(place); return of.question_ranks[i]; },
    k: (place) => cells.k[cellOf(place)],
  };

  // The places of a window of these, sorted by the keys of others, which are themselves if nothing else is said.
  function windowOf(places, sort, first, count, of = places) {
    const sorted = order(of, sort);
    return sorted ? Array.from(sorted.subarray(first, first + count), (i) => places[i]) : places.slice(first, first + count);
  }

  // Which comes first, second, ...; equal ones stay as they are. Null where all do.
  function order(places, sort) {
    const [by, sign] = sortOf(sort);
    if (!KEYS[by]) return null;
    const keys = places.map((place) => sign * KEYS[by](place));
    const lowest = keys.reduce((a, b) => Math.min(a, b), 0);
    return Float64Array.from(keys, (key, i) => (key - lowest) * places.length + i).sort().map((both) => both % places.length);
  }

  function row(place) {
    const [part, i] = rows.at(place);
    const [of, j] = examples.at(part.example[i]);
    const cell = cellOf(place);
    const named = Object.fromEntries(["task", "model", "series", "perturbation", "cell"].map((name) => [name, cellText(name, cell)]));
    const correct = part.correct[i];
    return {
      ...named, place, k: cells.k[cell], draw: cells.draw[cell], test_id: of.test_id[j], gold: of.gold[j], question: of.question[j].slice(0, MOST_SHOWN + 1),
      prediction: part.prediction_texts[part.prediction[i]], correct: correct < 0 ? null : correct === 1,
    };
  }

  async function rowsAt(places) {
    await load(different(places.map(cellOf)));
    return places.map(row);
  }

  // For each place its partner beside: the first row of the same test example, of the same draw where both are drawn.
  function partners(places, beside, other) {
    const same = SIDE.filter((name) => !other[name]);
    const groups = new Map();
    const groupOf = (withDraw) => cells.first.map((_, cell) => {
      const key = JSON.stringify([...same.map((name) => ofCell(name, cell)), withDraw ? cells.draw[cell] : null]);
      if (!groups.has(key)) groups.set(key, groups.size);
      return groups.get(key);
    });
    const [drawn, any] = [groupOf(true), groupOf(false)];
    const keyOf = (place, group) => { const [of, i] = example(place); return of.test[i] * groups.size + group[cellOf(place)]; };
    const firsts = new Map();
    for (const cell of beside) {
      for (let place = cells.first[cell]; place < endOf(cell); place += 1) {
        for (const group of [drawn, any]) {
          const key = keyOf(place, group);
          if (!firsts.has(key)) firsts.set(key, place);
        }
      }
    }
    return places.map((place) => {
      const found = firsts.get(keyOf(place, drawn));
      if (found !== undefined) return found;
      // of one that is not drawn there is one draw, which stands beside every draw of the other
      const loose = firsts.get(keyOf(place, any));
      return loose !== undefined && !(cells.drawn[cellOf(place)] && cells.drawn[cellOf(loose)]) ? loose : -1;
    });
  }

  async function pairs(asked, other, flips) {
    const point = { ...asked, ...Object.fromEntries(OF_ROWS.map((name) => [name, ""])) };
    const beside = cellsWith({ ...point, ...other });
    const not = new Set(beside);
    const left = cellsWith(asked).filter((cell) => !not.has(cell)); // a row does not stand beside itself
    await load(different([...left, ...beside]));
    const all = await find(asked, left);
    const partner = partners(all, beside, other);
    const counts = { total: 0, both: 0, neither: 0, lost: 0, won: 0, without_verdict: 0, unpaired: 0 };
    const [here, there, sums] = [[], [], new Map()];
    all.forEach((place, i) => {
      const beside_ = partner[i];
      if (beside_ < 0) { counts.unpaired += 1; return; }
      const [one, two] = [verdict(place), verdict(beside_)];
      const kind = one < 0 || two < 0 ? "without_verdict" : one && two ? "both" : one ? "lost" : two ? "won" : "neither";
      counts.total += 1;
      counts[kind] += 1;
      if (kind !== "without_verdict") {
        const [of, j] = example(place);
        sums.set(of.test[j], (sums.get(of.test[j]) || 0) + two - one);
      }
      const kept = flips === "changed" ? rank(place) !== rank(beside_) : flips === "lost" || flips === "won" ? kind === flips : true;
      if (kept) { here.push(place); there.push(beside_); }
    });
    const differences = [...sums.values()];
    const whole_ = !OF_ROWS.some((name) => asked[name]); // rows that were chosen by their answer differ by choice
    const p = whole_ && differences.length ? flipP(differences) : null;
    return { here, there, counts: { ...counts, flipped: differences.filter(Boolean).length, p } };
  }

  return Object.assign(source, {
    async options() {
      await begun;
      return options;
    },
    async page({ sort, flips, ...asked }, first, count) {
      await begun;
      const beside = SIDE.map((name) => [name, asked[`other_${name}`]]).filter(([, value]) => value);
      if (beside.length) {
        const { here, there, counts } = await pairs(asked, Object.fromEntries(beside), flips);
        const listed = await rowsAt(windowOf(here, sort, first, count));
        const others = await rowsAt(windowOf(there, sort, first, count, here));
        return { total: here.length, rows: listed.map((one, i) => ({ ...one, other: others[i] })), pairs: counts };
      }
      const found = await find(asked);
      const [by] = sortOf(sort);
      if (KEYS[by] && by !== "k") await load(cellsWith(asked));
      return { total: found.length, rows: await rowsAt(windowOf(found, sort, first, count)) };
    },
    async detail(listed) {
      const { place } = listed;
      await details.read(partOf(details.firsts, place));
      const [of, i] = details.at(place);
      const at = (column) => column[column.length === 1 ? 0 : i];
      const [part, j] = rows.at(place);
      const [asked, n] = examples.at(part.example[j]);
      const { tail, query, shown: texts_, listed: pairs_, ...end } = of.ends[at(of.end)];
      const names = pairs_.map((code) => of.names[code]);
      return {
        ...listed, ...end,
        ...Object.fromEntries(Object.entries(of.numbers).map(([name, column]) => [name, at(column)])),
        golds: of.golds_lists[at(of.golds)],
        text: at(of.written) ? part.text_texts[part.text[j]] : null,
        query: tail !== null ? asked.question[n] + tail : query === null ? null : await shownTexts.value(query),
        shown: await Promise.all(texts_.map((number) => shownTexts.value(number))),
        listed: names.filter((_, m) => m % 2 === 0).map((id, m) => [id, names[2 * m + 1]]),
      };
    },
    async one(cell, test) {
      await begun;
      const found = cells.cell.findIndex((code) => texts[code] === cell);
      if (found < 0) return null;
      await load([found]);
      for (let place = cells.first[found]; place < endOf(found); place += 1) {
        const [of, i] = example(place);
        if (of.test_id[i] === test) return row(place);
      }
      return null;
    },
  });
}

// The p value of flip_p() in icl_bench/report/viewer/predictions.py, from a whole number for each test example.
const MANY_FLIPS = 5000;

function flipP(sums) {
  const greatest = (a, b) => { while (b) [a, b] = [b, a % b]; return a; };
  const divisor = Math.max(sums.reduce((a, b) => greatest(a, Math.abs(b)), 0), 1);
  const steps = sums.map((sum) => sum / divisor).filter(Boolean);
  const net = steps.reduce((a, b) => a + b, 0);
  if (steps.length > MANY_FLIPS) {
    const spread = Math.sqrt(steps.reduce((a, b) => a + b * b, 0));
    return Math.min(2 * normalBelow((1 - Math.abs(net)) / spread), 1);
  }
  const counts = [];
  for (const step of steps) counts[Math.abs(step)] = (counts[Math.abs(step)] || 0) + 1;
  const logs = [0]; // of factorials
  for (let n = 1; n <= steps.length; n += 1) logs.push(logs[n - 1] + Math.log(n));
  let chances = new Float64Array([1]);
  counts.forEach((count, size) => {
    const further = new Float64Array(chances.length + size * count);
    for (let gains = 0; gains <= count; gains += 1) {
      const chance = Math.exp(logs[count] - logs[gains] - logs[count - gains] - count * Math.LN2);
      for (let i = 0; i < chances.length; i += 1) further[size * gains + i] += chance * chances[i];
    }
    chances = further;
  });
  const gained = steps.reduce((a, b) => a + Math.max(b, 0), 0);
  const least = Math.min(gained, gained - net); // of gains and of losses
  return Math.min(2 * chances.slice(0, least + 1).reduce((a, b) => a + b, 0), 1);
}

// The share of the standard normal distribution below a value, to seven digits (Numerical Recipes, erfcc).
function normalBelow(value) {
  const z = Math.abs(value) / Math.SQRT2;
  const t = 1 / (1 + 0.5 * z);
  const series = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
  const tail = 0.5 * t * Math.exp(-z * z + series.reduceRight((sum, one) => sum * t + one, 0));
  return value > 0 ? 1 - tail : tail;
}
