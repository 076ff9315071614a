// Follows a control: asks what the position it leads to is, and shows that. A view is its address.
"use strict";

const form = document.getElementById("controls");
const verdict = document.getElementById("verdict");
const moving = [...form.querySelectorAll("[data-base]")];
const panes = [...form.querySelectorAll("[name=show]")];
const LOST = "The server does not answer. Does gemmgen serve still run?";
const FAILED = "The server failed: its terminal says why. This is a bug in gemmgen.";
let busy = false, again = false;

const value = control => control.type === "checkbox" ? String(control.checked) : control.value.trim();

function put(control, text) {
  if (value(control) === text) return;
  if (control.type === "checkbox") control.checked = text === "true";
  else control.value = text;
}

// Only what is not as it is anyway: the levers that were not moved follow the choice.
function query() {
  const said = new URLSearchParams();
  for (const control of moving)
    if (value(control) !== control.dataset.base) said.set(control.name, value(control));
  if (panes.some(box => box.checked !== (box.dataset.usual === "true")))
    said.set("show", panes.filter(box => box.checked).map(box => box.value).join(","));
  return said.toString();
}

async function get(path, asked) {
  const got = await fetch(`${path}?${asked}`);
  if (!got.ok) throw new Error(FAILED);
  return got;
}

// One question at a time: what moves meanwhile is asked for when it is answered.
async function move() {
  again = true;
  if (busy) return;
  busy = true;
  while (again) {
    again = false;
    const asked = query();
    const address = asked ? `?${asked}` : location.pathname;
    if (address !== (location.search || location.pathname)) history.pushState(null, "", address);
    try {
      const answer = await (await get("/answer", asked)).json();
      if (!again) follow(answer);  // else it is of values that are no longer there
      for (const box of panes) if (!again) await show(box, asked);
    } catch (error) {
      verdict.className = "refused";
      verdict.textContent = error.message === FAILED ? FAILED : LOST;
    }
  }
  busy = false;
}

function follow(answer) {
  document.title = answer.title;
  if (verdict.innerHTML !== answer.verdict) verdict.innerHTML = answer.verdict;
  verdict.className = answer.kind;
  for (const control of moving) {
    const now = answer.controls[control.name];
    if (!now) continue;
    control.dataset.base = now.base;
    if (control !== document.activeElement || control.type !== "text") put(control, now.value);
    if (now.refused) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
    document.getElementById(`${control.id}-moved`).textContent = now.moved;
  }
}

async function show(box, asked) {
  const section = document.getElementById(`pane-${box.value}`);
  section.hidden = !box.checked;
  if (!box.checked || section.dataset.asked === asked) return;
  section.setAttribute("aria-busy", "true");
  const text = await (await get(`/pane/${box.value}`, asked)).text();
  section.removeAttribute("aria-busy");
  section.dataset.asked = asked;
  if (section.dataset.text === text) return;
  section.dataset.text = text;
  replace(section.querySelector(".inside"), text);
}

// What is unfolded stays so, and what is scrolled stays where it is.
function replace(inside, text) {
  const kept = what => [...inside.querySelectorAll(what)];
  const unfolded = kept("details").map(x => x.open), scrolled = kept(".wide").map(x => x.scrollLeft);
  inside.innerHTML = text;
  kept("details").forEach((x, i) => { x.open = unfolded[i] ?? false; });
  kept(".wide").forEach((x, i) => { x.scrollLeft = scrolled[i] ?? 0; });
}

form.addEventListener("change", move);
form.addEventListener("submit", event => { event.preventDefault(); move(); });
document.getElementById("back").addEventListener("click", () => {
  for (const control of moving)
    if (control.name === "config") control.value = "";
    else if (control.name.startsWith("set.")) put(control, control.dataset.base);
  move();
});
addEventListener("popstate", () => location.reload());
