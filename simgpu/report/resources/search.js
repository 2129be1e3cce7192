// Finding a tensor, a kernel or a layer: every span that has to do with it.
// Lives here: what matches, in order of time. Does not live here: how hits are shown (marks.js, details.js).

/** What a span has to do with the hits: its own name matched, or it makes or uses a tensor that did. */
const ROLES = { made: "makes", read: "uses", changed: "changes" };

class Matches {
  /** Looks through names once: spans are then found by number. */
  constructor(run, query) {
    const { kernels, blocks } = run.tasks, wanted = query.toLowerCase();
    // A whole name means that alone, and not others that begin with it.
    const columns = [blocks.id, kernels.id, kernels.layer, kernels.op];
    const whole = columns.some(column => column.some(number => run.words[number].toLowerCase() === wanted));
    const matches = text => whole ? text === wanted : text.includes(wanted);
    const known = new Map();
    const has = number => {
      if (!known.has(number)) known.set(number, matches(run.words[number].toLowerCase()));
      return known.get(number);
    };
    this.has = has;
    const tensors = blocks.id.map((id, b) => has(id) || has(blocks.layer[b]));
    this.tensorNames = new Set(blocks.id.filter((_, b) => tensors[b]));
    this.kernels = kernels.id.map((id, k) => {
      if (has(id) || has(kernels.op[k]) || has(kernels.layer[k])) return "";
      const reads = kernels.reads[k].some(b => tensors[b]), writes = kernels.writes[k].some(b => tensors[b]);
      return reads && writes ? ROLES.changed : writes ? ROLES.made : reads ? ROLES.read : null;
    });
  }
}

/** Hits within a stretch of time: {track, i, role}, by start and then by stream; `byTrack` has those of each. */
function search(run, query, from, to) {
  const hits = [], byTrack = new Map();
  if (!query.trim()) return Object.assign(hits, { byTrack });
  const matches = new Matches(run, query.trim());
  run.tracks.forEach((track, order) => {
    const mine = [];
    byTrack.set(track, mine);
    const [first, last] = track.within(from, to);
    for (let i = first; i < last; i++) {
      if (track.name[i] < 0) continue;
      const { kernel } = subjectOf(run, track, i), waits = run.kinds[track.kind[i]].startsWith("stall");
      const role = kernel !== undefined && !waits ? matches.kernels[kernel]
        : matches.has(track.name[i]) || matches.tensorNames.has(track.name[i]) ? "" : null;
      if (role !== null) mine.push({ track, i, role, order });
    }
    for (const hit of mine) hits.push(hit);
  });
  hits.sort((a, b) => a.track.start[a.i] - b.track.start[b.i] || a.order - b.order);
  return Object.assign(hits, { byTrack });
}
