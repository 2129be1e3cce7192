// Puts the page together: tabs, tools, search, the picture.
// Lives here: wiring. Does not live here: what any part does.

function start() {
  const home = document.getElementById("stage");
  if (!home) return;
  const get = id => document.getElementById(id);
  const page = new Page(get("data").textContent);
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const tip = get("tip"), details = get("details"), list = get("hits"), query = get("query"), scope = get("scope");
  let number = 0, current = -1;
  const stage = new Stage(page, home, pinnedToo => {
    showRange();
    if (pinnedToo) showPinned();
  });

  function showRange() {
    const { view, origin } = stage, unit = unitFor(Math.max(1, view.end - origin));
    const digits = value => exactTime(Math.round(value), unit);
    const seen = short(100 * view.length / (view.scope[1] - view.scope[0]));
    get("range").textContent = view.fits ? `all ${timeText(view.length)}`
      : `${timeText(Math.round(view.start - origin))} to ${timeText(Math.round(view.end - origin))} (${seen}%)`;
    get("range").title = `${digits(view.start - origin)} to ${digits(view.end - origin)}`;
    get("farther").disabled = get("fit").disabled = view.fits;
    get("back").disabled = view.start <= view.scope[0];
    get("onward").disabled = view.end >= view.scope[1];
  }

  function showPinned() { showDetails(details, stage, find, () => pin(null)); }

  function pin(span) {
    stage.pin(span);
    showPinned();
  }

  function find(text) {
    query.value = text;
    look();
    step(1);
  }

  /** Marks what matches; the view stays. */
  function look() {
    stage.hits = search(stage.run, query.value, ...stage.view.scope);
    stage.current = null;
    current = -1;
    showHits(list, stage, choose);
    showCount();
    stage.paintMarks();
  }

  function showCount() {
    const { hits } = stage, empty = !query.value.trim();
    get("count").textContent = empty ? "" : !hits.length ? "no hit" : current < 0 ? counted(hits.length, "hit")
      : `${(current + 1).toLocaleString("en")} of ${hits.length.toLocaleString("en")}`;
    get("count").classList.toggle("bad", !empty && !hits.length);
    get("previous").disabled = get("next").disabled = !hits.length;
  }

  function choose(hit) {
    current = hit;
    stage.current = stage.hits[hit];
    stage.goTo(stage.current);
    showCount();
    markCurrent(list, current);
  }

  function step(way) {
    const count = stage.hits.length;
    if (count) choose(current < 0 ? (way > 0 ? 0 : count - 1) : (current + way + count) % count);
  }

  function open(iteration) {
    stage.open(page.run(number), iteration);
    showPinned();
    showLegend();
    look();
    const seen = iteration === null ? "all iterations" : `iteration ${iteration + 1}`;
    stage.canvas.setAttribute("aria-label", `Timeline and memory of ${stage.run.label}, ${seen}: ${counted(stage.layout ? stage.layout.rows.length : 0, "stream")}`);
  }

  function showLegend() {
    const used = new Set(stage.run.tracks.flatMap(track => track.looks)), seen = new Map();
    page.looks.forEach((look, i) => { if (used.has(i) && !seen.has(look.label)) seen.set(look.label, look); });
    get("legend").replaceChildren(...[...seen.values()].map(look => {
      const swatch = element("i");
      swatch.dataset.hatch = look.hatch;
      swatch.style.setProperty("--fill", look.fill);
      swatch.style.setProperty("--ink", look.ink);
      if (look.height < 0.5) swatch.dataset.thin = "";
      return element("li", {}, swatch, look.label);
    }));
    if (get("map-legend")) showMapLegend();
  }

  /** What the segment map's colours mean, as far as they are in it. */
  function showMapLegend() {
    const { run } = stage, seen = new Set(run.maps.flatMap(map => [...map.blocks.block.keys()].map(i => heldBy(run, map, i))));
    const entries = Object.entries(page.data.map_colours).filter(([name]) => seen.has(name));
    const free = run.maps.length ? [["free in a segment", "var(--free)"]] : [];
    get("map-help").hidden = !run.maps.length;
    get("map-legend").replaceChildren(...[...entries, ...free].map(([name, colour]) => {
      const swatch = element("i");
      swatch.dataset.hatch = "";
      swatch.style.setProperty("--fill", colour);
      return element("li", {}, swatch, name);
    }));
  }

  function select(tab) {
    number = tab;
    tabs.forEach((each, i) => {
      each.setAttribute("aria-selected", String(i === tab));
      each.tabIndex = i === tab ? 0 : -1;
    });
    get("panel").removeAttribute("aria-label");
    get("panel").setAttribute("aria-labelledby", tabs[tab].id);
    const count = page.run(tab).ends.length, wanted = scope.value;
    const choices = [...Array(count).keys()].map(i => [String(i), i === count - 1 ? `${i + 1} of ${count}` : String(i + 1)]);
    scope.replaceChildren(...[...choices, ["all", "all"]].map(([value, text]) => element("option", { value }, text)));
    scope.value = wanted && [...scope.options].some(option => option.value === wanted) ? wanted : String(count - 1);
    open(scope.value === "all" ? null : Number(scope.value));
  }

  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => select(i));
    tab.addEventListener("keydown", event => {
      const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined || !tabs[to]) return;
      event.preventDefault();
      tabs[to].focus();
      select(to);
    });
  });
  scope.addEventListener("change", () => open(scope.value === "all" ? null : Number(scope.value)));
  const { view } = stage, middle = () => (view.start + view.end) / 2;
  const buttons = { back: () => view.move(-0.3), onward: () => view.move(0.3), fit: () => view.fit(),
    closer: () => view.zoom(0.6, middle()), farther: () => view.zoom(1 / 0.6, middle()),
    next: () => step(1), previous: () => step(-1) };
  for (const [id, act] of Object.entries(buttons)) get(id).addEventListener("click", act);
  query.addEventListener("input", look);
  query.addEventListener("keydown", event => {
    if (event.key === "Enter") step(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") { query.value = ""; look(); stage.canvas.focus(); }
    else return;
    event.preventDefault();
  });
  followPointer(stage, tip, pin);
  followKeys(stage, { pinned: pin, find: () => query.focus(), step });
  // Paper is light, whatever the screen is.
  addEventListener("beforeprint", () => { document.documentElement.dataset.paper = ""; stage.resize(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.paper; stage.resize(); });
  // First what has a budget to keep: the ideal, without transfers, has little to show.
  select(Math.max(0, page.data.runs.findIndex(run => !run.unlimited)));
}

start();
