// Filters the claims by verdict, by whether they are fitted, and by words.
const bodies = [...document.querySelectorAll("table.claims > tbody")];
const texts = bodies.map((body) => body.textContent.toLowerCase());
const tools = document.getElementById("tools");
const query = document.getElementById("query");
const buttons = tools ? [...tools.querySelectorAll("button")] : [];

const pressed = (key) => buttons.filter((button) => button.dataset[key] && button.getAttribute("aria-pressed") === "true")
  .map((button) => button.dataset[key]);

function show() {
  const looks = pressed("look"), sorts = pressed("sort"), words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  bodies.forEach((body, at) => {
    body.hidden = (looks.length > 0 && !looks.includes(body.dataset.look))
      || (sorts.length > 0 && !sorts.includes(body.dataset.sort))
      || !words.every((word) => texts[at].includes(word));
    shown += body.hidden ? 0 : 1;
  });
  for (const section of document.querySelectorAll("section.paper")) {
    if (!section.querySelector("table.claims")) continue;
    const none = section.querySelectorAll("table.claims > tbody:not([hidden])").length === 0;
    section.querySelector("table.claims").hidden = none;
    section.querySelector("p.none").hidden = !none;
  }
  document.getElementById("count").textContent = shown === bodies.length ? "" : `${shown} of ${bodies.length} claims`;
}

function clear() {
  buttons.forEach((button) => button.setAttribute("aria-pressed", "false"));
  query.value = "";
  show();
}

// A link to a hidden claim clears the filters. Ids need no decoding.
function reach() {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.closest("[hidden]")) {
    clear();
    target.scrollIntoView();
  }
}

if (!tools) return;
tools.hidden = false;
for (const button of buttons) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    show();
  });
}
query.addEventListener("input", show);
addEventListener("hashchange", reach);
addEventListener("keydown", (event) => {
  const typing = event.target.closest("input");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    query.focus();
  } else if (event.key === "Escape") {
    clear();
  }
});
// The browser may restore the search text after a reload.
show();
reach();
