// The panels under the picture: facts of the pinned span (facts.js), and the hits of a search (search.js).

/** Number of listed hits; all hits are marked and can be stepped through. */
const LISTED = 300;
/** Number of tensors named per kernel. */
const NAMED = 40;

/** find: searches a name. see: goes to a span. */
function showDetails(home, stage, find, close) {
  const { pinned, run, waited } = stage;
  home.hidden = !pinned;
  if (!pinned) return home.replaceChildren();
  const facts = factsOf(run, pinned.track, pinned.i, stage.origin);
  showFacts(home, facts);
  const list = home.querySelector("dl");
  const name = word(run, pinned.track.name[pinned.i]);
  const named = text => element("button", { className: "name", title: `find ${text}`, onclick: () => find(text) }, text);
  if (facts.kernel !== undefined) {
    const { kernels, blocks } = run.tasks;
    for (const [title, column] of [["reads", kernels.reads], ["writes", kernels.writes]]) {
      const touched = column[facts.kernel];
      if (!touched.length) continue;
      const names = element("dd");
      touched.slice(0, NAMED).forEach((block, i) => {
        names.append(i ? ", " : "", named(word(run, blocks.id[block])), ` ${sizeText(blocks.bytes[block])}`);
      });
      if (touched.length > NAMED) names.append(`, and ${touched.length - NAMED} more`);
      list.append(element("dt", {}, title), names);
    }
  } else if (name) {
    list.append(element("dt", {}, "see also"), element("dd", {}, named(name)));
  }
  if (waited) {
    const go = () => stage.goTo(waited);
    const title = factsOf(run, waited.track, waited.i, stage.origin).title;
    const button = element("button", { className: "name", onclick: go }, `${title}, on ${run.streams[waited.track.stream]}`);
    list.append(element("dt", {}, "ended by"), element("dd", {}, button));
  }
  const button = element("button", { className: "close", title: "close (Esc)", onclick: close }, "×");
  button.setAttribute("aria-label", "close details");
  home.append(button);
}

function hitText(run, { track, i, role }) {
  const { kernel } = subjectOf(run, track, i), kind = run.kinds[track.kind[i]], waits = kind.startsWith("stall");
  if (kernel === undefined || waits) return `${kind.replace("stall event", "waits for")}: ${word(run, track.name[i])}`;
  return `${role ? role + " it: " : ""}${labelOf(run, track, i)}`;
}

/** The list of hits; a click goes to one. */
function showHits(home, stage, choose) {
  const { hits, run } = stage;
  home.hidden = !hits.length;
  if (!hits.length) return home.replaceChildren();
  const unit = unitFor(stage.view.scope[1] - stage.origin);
  const list = element("ol");
  hits.slice(0, LISTED).forEach((hit, number) => {
    const time = exactTime(hit.track.start[hit.i] - stage.origin, unit);
    const parts = [time, run.streams[hit.track.stream], hitText(run, hit)];
    const button = element("button", { onclick: () => choose(number) }, ...parts.map(text => element("span", {}, text)));
    button.title = parts[2];
    list.append(element("li", {}, button));
  });
  const head = element("strong", {}, `${counted(hits.length, "hit")} in time order`);
  home.replaceChildren(head, list);
  if (hits.length > LISTED) home.append(element("p", { className: "help" }, `The first ${LISTED} are listed; Enter steps through all.`));
}

function markCurrent(home, current) {
  home.querySelectorAll("li button").forEach((button, number) => {
    if (number === current) {
      button.setAttribute("aria-current", "true");
      const list = home.querySelector("ol"), top = button.offsetTop - list.offsetTop;
      if (top < list.scrollTop || top > list.scrollTop + list.clientHeight - 24) list.scrollTop = top - 60;
    } else button.removeAttribute("aria-current");
  });
}
