// Numbers as people read them: the words of simgpu/units.py.
// Lives here: times, sizes and rates as texts. Does not live here: where they are shown.

const TIMES = [["s", 1e9], ["ms", 1e6], ["us", 1e3]];
const SIZES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const RATES = [["TB/s", 1e12], ["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]];

/** Four digits, without zeros at the end. */
function short(value) {
  return Math.abs(value) < 1000 ? String(Number(value.toPrecision(4))) : value.toFixed(0);
}

function inUnits(value, units, base) {
  for (const [unit, factor] of units) if (Math.abs(value) >= factor) return `${short(value / factor)} ${unit}`;
  return `${short(value)} ${base}`;
}

const timeText = ns => inUnits(ns, TIMES, "ns");
const sizeText = bytes => inUnits(bytes, SIZES, "B");
const rateText = rate => inUnits(rate, RATES, "B/s");

/** A time to the nanosecond, in the unit of the axis: of two that differ, the texts do. */
function exactTime(ns, unit) {
  const factor = (TIMES.find(([name]) => name === unit) || ["ns", 1])[1];
  const digits = Math.round(Math.log10(factor));
  const whole = Math.trunc(ns / factor), rest = Math.abs(ns % factor);
  const sign = ns < 0 && whole === 0 ? "-" : "";
  const fraction = String(rest).padStart(digits, "0").slice(0, digits).replace(/0+$/, "");
  return `${sign}${whole}${fraction ? "." + fraction : ""} ${factor === 1 ? "ns" : unit}`;
}

/** The unit in which a stretch of time has a readable axis. */
function unitFor(length) {
  return (TIMES.find(([, factor]) => length >= factor) || ["ns"])[0];
}

/** Bytes with all their digits, for where every one counts. */
const exactSize = bytes => bytes < 1024 ? `${bytes} B` : `${sizeText(bytes)} (${bytes.toLocaleString("en")} B)`;

/** "1 hit", "2 hits". */
const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
