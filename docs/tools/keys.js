// What the keyboard reaches in a page: watches where the focus goes. Run in the page by docs.tools.faults.
(() => {
"use strict";
const CONTROLS = "a[href], area[href], button, input:not([type=hidden]), select, textarea, summary, audio[controls], " +
  "video[controls], iframe, [contenteditable], [tabindex]";
const NATIVE = "a[href], area[href], button, input, select, textarea, summary, audio, video, iframe";
const FOCUSED = ["outlineStyle", "outlineWidth", "outlineColor", "boxShadow", "backgroundColor", "borderColor",
  "borderWidth", "color", "textDecorationLine", "textDecorationColor", "fill", "stroke"];
const found = [];
const say = (kind, what) => found.push(`${kind}: ${what}`);
const named = e => `${e.outerHTML.split(">")[0].slice(0, 90)}> ${e.textContent.replace(/\s+/g, " ").trim().slice(0, 40)}`;
const seen = e => e.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true}) && e.getClientRects().length;
const inside = e => [...e.getClientRects()].some(r => r.width && r.height && r.right > 0 && r.left < innerWidth);
// An input that takes no room is shown by a label: its own or the one beside it.
const shown = e => [e, ...e.labels ?? [], e.nextElementSibling].find(x => x && seen(x) && x.offsetWidth !== 0) ?? e;

// Of radio buttons of a name the keyboard reaches one.
function reached(e, number, all) {
  if (e.type != "radio") return true;
  const group = all.filter(o => o.type == "radio" && o.name == e.name && o.form == e.form);
  return e == (group.find(o => o.checked) ?? group[0]);
}

// Of these the keyboard reaches one part, and arrows the others.
const COMPOSITE = "[role=tablist], [role=radiogroup], [role=listbox], [role=menu], [role=tree], [role=grid], [role=toolbar]";
const skipped = e => e.getAttribute("tabindex") < 0 && (!e.matches(NATIVE) && !e.hasAttribute("role") ||
  e.hidden || e.closest(COMPOSITE) || e.closest("[aria-hidden=true]"));
const controls = [...document.querySelectorAll(CONTROLS)]
  .filter(e => seen(e) && inside(shown(e)) && !e.matches(":disabled") && !e.closest("[inert]"))
  .filter(e => !skipped(e))
  .filter(reached);

const look = e => { const s = getComputedStyle(e); return FOCUSED.map(name => s[name]).join("|"); };
const before = new Map(controls.map(e => [e, look(shown(e))]));
const order = [];
// Also what came to be seen only while the focus went round.
const reachable = e => e && (controls.includes(e) || e.type == "radio" || e.closest(COMPOSITE) ||
  e.matches(NATIVE) && e.tabIndex >= 0 && seen(e));

// How the focused control looks, and whether it is on the screen: before the next key is pressed.
function judge() {
  const e = document.activeElement;
  if (!e || e == document.body || order.includes(e)) return;
  order.push(e);
  const shows = shown(e), s = getComputedStyle(shows), width = parseFloat(s.outlineWidth);
  const ring = s.outlineStyle != "none" && width > 0 && !/, 0\)$|transparent/.test(s.outlineColor);
  if (!ring && before.get(e) == look(shows)) say("no focus style", named(e));
  const rects = [...shows.getClientRects()].filter(r => r.width && r.height);
  const inView = rects.some(r => {
    const x = (Math.max(r.left, 0) + Math.min(r.right, innerWidth)) / 2, y = (Math.max(r.top, 0) + Math.min(r.bottom, innerHeight)) / 2;
    const top = document.elementFromPoint(x, y);
    return r.right > 0 && r.left < innerWidth && r.bottom > 0 && r.top < innerHeight && top &&
      (shows.contains(top) || top.contains(shows));
  });
  if (!inView) say("focus out of sight", named(e));
}
addEventListener("keydown", judge, true);

function ended() {
  judge();
  removeEventListener("keydown", judge, true);
  for (const e of controls) if (!order.includes(e) && !skipped(e)) say("no key reaches", named(e));
  const mine = order.filter(e => controls.includes(e));
  mine.forEach((e, i) => {
    if (i && !(mine[i - 1].compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING))
      say("out of order", `${named(e)} after ${named(mine[i - 1])}`);
  });
  for (const e of controls) if (e.closest("[aria-hidden=true]")) say("hidden from readers", named(e));
  for (const e of document.querySelectorAll("body *")) {
    const pointed = e.hasAttribute("onclick") || getComputedStyle(e).cursor == "pointer";
    const parent = e.parentElement, own = e.hasAttribute("onclick") || getComputedStyle(parent).cursor != "pointer";
    if (!pointed || !own || !seen(e) || !inside(e) || e.closest("[inert]")) continue;
    if (e.matches(".md-search__overlay")) continue;  // closes what Escape closes; seen while that fades
    const by = [e.closest(CONTROLS), e.closest("label")?.control, e.querySelector(CONTROLS)];
    if (!by.some(reachable)) say("for pointers alone", named(e));
  }
  return found;
}

window.gemmgenKeys = {
  ended,
  // How many have had the focus.
  reached: () => { judge(); return order.length; },
  // What the page itself must answer for, and what it must do by a key.
  scripted: controls.filter(e => e.hasAttribute("role") && e.matches("[role=button], [role=link], [role=checkbox], " +
    "[role=switch], [role=tab], [role=slider], [role=option]") && !e.matches(NATIVE)),
  folds: controls.filter(e => e.tagName == "SUMMARY"),
  scrollers: controls.filter(e => !e.matches(NATIVE) && e.scrollWidth > e.clientWidth + 1 &&
    ["auto", "scroll"].includes(getComputedStyle(e).overflowX)),
  named,
  // Whether it is so within a second: what a key does is drawn later.
  soon: async so => {
    for (let i = 0; i < 60 && !so(); ++i) await new Promise(r => requestAnimationFrame(r));
    return so();
  },
};
})()
