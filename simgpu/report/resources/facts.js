// Facts of a span, as names and texts: for the tip under the pointer and for the pinned details.

const stripped = op => op.replace(/^aten::/, "");

/** The word with that number, empty for none. */
const word = (run, number) => number < 0 ? "" : run.words[number];

/** Kernel or block that a span names: spans of work by their kind, waits by the stream that is waited for. */
function subjectOf(run, track, i) {
  const { tasks } = run, name = track.name[i], kind = run.kinds[track.kind[i]];
  if (name < 0) return {};
  const waits = kind.startsWith("stall");
  const computes = waits ? /compute|host/.test(run.streams[track.cause[i]] || "") : /compute/.test(kind);
  const kernel = tasks.kernelOf.get(name), block = tasks.blockOf.get(name);
  return computes && kernel !== undefined || block === undefined ? { kernel } : { block };
}

function kernelTitle(run, kernel) {
  const { kernels } = run.tasks, id = word(run, kernels.id[kernel]), op = stripped(word(run, kernels.op[kernel]));
  return op && !id.includes(op) ? `${id} ${op}` : id;
}

/** A short name for a box: a kernel's layer and operator where it has a layer, else its title. */
function labelOf(run, track, i) {
  const { kernel } = subjectOf(run, track, i), name = word(run, track.name[i]);
  if (kernel === undefined) return name;
  const layer = word(run, run.tasks.kernels.layer[kernel]), op = stripped(word(run, run.tasks.kernels.op[kernel]));
  return layer ? `${layer} ${op}` : kernelTitle(run, kernel);
}

/** Names and texts of a span; times count from `origin`. */
function factsOf(run, track, i, origin) {
  const kind = run.kinds[track.kind[i]], waits = kind.startsWith("stall"), { tasks } = run;
  const { kernel, block } = subjectOf(run, track, i), name = word(run, track.name[i]);
  const start = track.start[i], end = track.end[i], unit = unitFor(Math.max(1, end - origin));
  const title = waits ? waitTitle(kind) : kernel !== undefined ? kernelTitle(run, kernel) : name;
  const rows = [["kind", waits ? "stall" : kind], ["stream", run.streams[track.stream]]];
  if (waits && name) rows.push(["waits for", kernel !== undefined ? kernelTitle(run, kernel) : name]);
  if (waits && track.cause[i] >= 0) rows.push(["of stream", run.streams[track.cause[i]]]);
  if (kernel !== undefined) {
    rows.push(["layer", word(run, tasks.kernels.layer[kernel])], ["phase", word(run, tasks.kernels.phase[kernel])]);
  } else if (block !== undefined) {
    rows.push(["tensor", word(run, tasks.blocks.kind[block])], ["size", exactSize(tasks.blocks.bytes[block])]);
  }
  rows.push(["start", exactTime(start - origin, unit)], ["end", exactTime(end - origin, unit)]);
  rows.push(["duration", timeText(end - start)]);
  if (track.bytes[i]) {
    rows.push(["transferred", exactSize(track.bytes[i])]);
    if (end > start) rows.push(["bandwidth", rateText(track.bytes[i] * 1e9 / (end - start))]);
  }
  return { title, rows: rows.filter(([, text]) => text !== ""), kernel: waits ? undefined : kernel, look: track.look[i] };
}

function waitTitle(kind) {
  if (kind.endsWith(" memory")) return kind.replace("stall", "waits for");
  if (kind.endsWith(" launch")) return "waits for the host's launch";
  return kind.includes("engine") ? "waits for a copy engine" : "waits for another stream";
}

/** The memory in use at a time. */
function memoryFacts(run, time, origin, unit) {
  const rows = [["time", exactTime(Math.round(time) - origin, unit)]];
  for (const curve of [...run.memory, ...run.shared]) {
    const at = curve.at(time);
    if (at < 0) continue;
    const padding = curve.used[at] - curve.live[at];
    if (curve.reserved) {
      const levels = [[curve.live, "live"], [curve.used, "allocated"], [curve.reserved, "reserved"]];
      rows.push([curve.title, levels.map(([bytes, name]) => `${sizeText(bytes[at])} ${name}`).join(", ")]);
      continue;
    }
    rows.push([curve.title, sizeText(curve.live[at]) + (padding ? ` and ${sizeText(padding)} padding` : "")]);
  }
  return { title: "memory in use", rows };
}

function element(tag, attributes = {}, ...children) {
  const created = Object.assign(document.createElement(tag), attributes);
  created.append(...children);
  return created;
}

function showFacts(home, facts) {
  const list = element("dl");
  for (const [name, text] of facts.rows) list.append(element("dt", {}, name), element("dd", {}, text));
  home.classList.add("shown");
  home.replaceChildren(element("strong", {}, facts.title), list);
}
