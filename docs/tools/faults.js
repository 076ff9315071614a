// What is wrong with a page as it is laid out now, a line each, "kind: where": run in the page by docs.tools.faults.
(() => {
"use strict";
const APART = 1;  // pixels by which boxes may be over each other
const CONTRAST = 4.5;  // WCAG 2.2, 1.4.3, of text of any size
const SCROLLS = ["auto", "scroll"], CUTS = ["hidden", "clip"];
const GONE_TO = "a[href], button, summary, label[tabindex='0']";
const PAINTED = "rect, path, circle, ellipse, polygon";
const root = document.documentElement;
const drawing = document.contentType == "image/svg+xml";  // a file of its own: no window bounds it
const found = [];
const say = (kind, what) => found.push(`${kind}: ${what}`);
const short = text => text.replace(/\s+/g, " ").trim().slice(0, 60);
const styles = new Map();
const style = e => styles.get(e) ?? styles.set(e, getComputedStyle(e)).get(e);
const named = e => e.outerHTML.split(">")[0].slice(0, 90) + ">";
// For readers of the screen alone, or gone until something is pressed.
const seen = e => e.checkVisibility({opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true});

// ---- boxes of text -------------------------------------------------------------------------

// The elements that may cut off what `e` holds, from inside to outside.
function around(e) {
  const boxes = [];
  let placed = "";
  for (let a = e; a && a != root; a = a.parentElement) {
    const s = style(a), holds = s.position != "static" || s.transform != "none";
    if (!(placed == "absolute" && !holds) && a != document.body) boxes.push(a);
    if (s.position == "fixed") return {boxes, fixed: true};
    if (holds) placed = s.position;
    if (placed == "absolute" && a instanceof SVGElement) placed = "";
  }
  return {boxes, fixed: false};
}

function inner(e) {
  const b = e.getBoundingClientRect();
  const left = b.left + e.clientLeft, top = b.top + e.clientTop;
  return {left, top, right: left + e.clientWidth, bottom: top + e.clientHeight};
}

const both = (a, b) => ({
  left: Math.max(a.left, b.left), top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right), bottom: Math.min(a.bottom, b.bottom),
});
const empty = r => r.right - r.left <= APART || r.bottom - r.top <= APART;

// What is left of `rect` to see, and whether something cuts off the rest; none: it is hidden on purpose.
function visible(rect, chain) {
  let left = rect, scroller = null, cut = null;
  for (const e of chain.boxes) {
    const s = style(e), ways = [s.overflowX, s.overflowY];
    if (ways.every(o => o == "visible")) continue;
    if (e instanceof SVGElement) continue;  // pictures are looked at by themselves
    const box = inner(e);
    if (box.right - box.left <= APART || box.bottom - box.top <= APART) return {hidden: true};
    ways.forEach((way, y) => {
      const [from, to] = y ? ["top", "bottom"] : ["left", "right"];
      const out = left[from] < box[from] - APART || left[to] > box[to] + APART;
      if (!out) return;
      if (CUTS.includes(way)) cut ??= e;
      if (SCROLLS.includes(way)) {
        scroller ??= e;
        const end = box[from] - (y ? e.scrollTop : e.scrollLeft);
        if (left[from] < end - APART) cut ??= e;  // nobody scrolls to before the beginning
      }
    });
    left = both(left, box);
    if (empty(left) && !scroller) return {hidden: false, cut, left, scroller};
  }
  return {hidden: false, cut, left, scroller};
}

function texts() {
  const walker = document.createTreeWalker(document.body ?? root, NodeFilter.SHOW_TEXT);
  const range = document.createRange(), all = [], chains = new Map();
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || !seen(parent)) continue;
    if (!chains.has(parent)) chains.set(parent, around(parent));
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      if (rect.width < APART || rect.height < APART) continue;
      const chain = chains.get(parent);
      if (chain.fixed && empty(both(rect, {left: 0, top: 0, right: innerWidth, bottom: innerHeight}))) continue;
      all.push({node, parent, rect, fixed: chain.fixed, ...visible(rect, chain)});
    }
  }
  return all.filter(t => !t.hidden);
}

// Pictures, as boxes of text are.
function images() {
  const all = [...document.querySelectorAll("img, svg, canvas")].filter(e => e.parentElement && seen(e) && !e.ownerSVGElement);
  return all.map(e => {
    const rect = e.getBoundingClientRect(), chain = around(e.parentElement);
    const data = e.getAttribute("alt") ?? e.getAttribute("aria-label") ?? e.tagName;
    return {node: {data}, parent: e.parentElement, rect, fixed: chain.fixed, ...visible(rect, chain)};
  }).filter(t => !t.hidden && !empty(t.rect));
}

function cutOff(all) {
  const scrollers = new Set(), said = new Set();
  for (const t of all) {
    if (t.scroller && !t.parent.closest(GONE_TO)) scrollers.add(t.scroller);  // going to a link shows it
    const beyond = !drawing && !t.scroller && (t.rect.left < -APART || t.rect.right > innerWidth + APART);
    if (!(t.cut || beyond) || said.has(t.node)) continue;
    said.add(t.node);
    say("cut off", `"${short(t.node.data)}" by ${t.cut ? named(t.cut) : "the window"}`);
  }
  for (const e of document.querySelectorAll("input, textarea"))
    if (seen(e) && e.value && e.scrollWidth > e.clientWidth + APART) say("cut off", `"${short(e.value)}" by its box`);
  for (const e of scrollers) {
    const name = e.getAttribute("aria-label") || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent;
    const native = ["TEXTAREA", "SELECT"].includes(e.tagName);
    if (!native && !(e.tabIndex >= 0 && name && e.getAttribute("role"))) say("scrolls without a name", named(e));
  }
}

// A wide table scrolls past its first column, which says what a row is of.
function columns() {
  for (const t of document.querySelectorAll("table:has(th)")) {
    let box = t;
    while (box && !SCROLLS.includes(style(box).overflowX)) box = box.parentElement;
    if (!seen(t) || !box || t.getBoundingClientRect().width <= box.clientWidth + APART) continue;
    const before = box.scrollLeft;
    box.scrollLeft = box.scrollWidth;
    const first = t.rows[t.rows.length - 1].cells[0].getBoundingClientRect();
    if (first.left < inner(box).left - APART) say("column scrolls away", short(t.rows[0].innerText));
    box.scrollLeft = before;
  }
}

// The letters of a line, without the room above and below them.
function ink(r) {
  const height = r.bottom - r.top;
  return {left: r.left + APART, right: r.right - APART, top: r.top + .25 * height, bottom: r.bottom - .22 * height};
}

function overlaps(all) {
  const boxes = all.map(t => ({t, r: ink(t.rect)})).filter(b => b.r.right > b.r.left).sort((a, b) => a.r.top - b.r.top);
  const said = new Set();
  let open = [];
  for (const b of boxes) {
    open = open.filter(o => o.r.bottom > b.r.top);
    for (const o of open) {
      if (o.t.node == b.t.node || o.t.fixed != b.t.fixed || o.r.left >= b.r.right || b.r.left >= o.r.right) continue;
      if (o.t.scroller != b.t.scroller && empty(both(o.t.left, b.t.left))) continue;
      const what = `"${short(o.t.node.data)}" and "${short(b.t.node.data)}"`;
      if (!said.has(what)) say("overlap", what);
      said.add(what);
    }
    open.push(b);
  }
}

// ---- pictures ------------------------------------------------------------------------------

const pictures = [...document.querySelectorAll("svg")].filter(s => !s.ownerSVGElement && seen(s));

function inPictures(all) {
  for (const s of pictures) {
    const room = s.getBoundingClientRect();
    for (const t of all.filter(t => s.contains(t.parent))) {
      const r = t.rect;
      if (r.left < room.left - APART || r.right > room.right + APART || r.top < room.top - APART ||
          r.bottom > room.bottom + APART) say("leaves its picture", short(t.node.data));
      const cell = t.parent.previousElementSibling, box = cell?.tagName == "rect" && cell.getBoundingClientRect();
      const inside = box && box.left <= (r.left + r.right) / 2 && (r.left + r.right) / 2 <= box.right &&
        box.top <= (r.top + r.bottom) / 2 && (r.top + r.bottom) / 2 <= box.bottom;
      if (inside && box.height < 2 * r.height && r.width > box.width + APART) say("wider than its cell", short(t.node.data));
    }
    const decorates = s.closest("[aria-hidden=true], button, a, summary, label");
    const name = s.getAttribute("aria-label") || document.getElementById(s.getAttribute("aria-labelledby"))?.textContent;
    if (!decorates && !(s.getAttribute("role") && name)) say("no alternative", named(s));
  }
  for (const e of document.querySelectorAll("img, area, input[type=image]"))
    if (!e.hasAttribute("alt") && seen(e)) say("no alternative", named(e));
  for (const e of document.querySelectorAll("canvas"))
    if (seen(e) && !(e.getAttribute("aria-label") && e.getAttribute("role"))) say("no alternative", named(e));
}

// ---- colours -------------------------------------------------------------------------------

const html = name => document.createElementNS("http://www.w3.org/1999/xhtml", name);
const pen = Object.assign(html("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
const colours = new Map();

function colour(text) {
  if (!colours.has(text)) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    colours.set(text, [r, g, b, a / 255]);
  }
  return colours.get(text);
}

const over = (c, below) => [0, 1, 2].map(i => c[i] * c[3] + below[i] * (1 - c[3])).concat(1);

// What a page without a background has.
const canvas = (() => {
  const e = html("i");
  e.style.backgroundColor = "Canvas";
  root.append(e);
  const is = colour(getComputedStyle(e).backgroundColor);
  e.remove();
  return is;
})();

const grounds = new Map();
function ground(e) {
  if (!e) return canvas;
  if (!grounds.has(e)) {
    const below = ground(e.parentElement), c = colour(style(e).backgroundColor);
    grounds.set(e, c[3] ? over(c, below) : below);
  }
  return grounds.get(e);
}

function light([r, g, b]) {
  const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * x + .7152 * y + .0722 * z;
}

function ratio(a, b) {
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + .05) / (low + .05);
}

const painted = new Map();
function shapes(s) {
  if (!painted.has(s)) {
    const all = [...s.querySelectorAll(PAINTED)].filter(e => !e.closest("defs, clipPath, mask, symbol"));
    painted.set(s, all.map(e => ({e, r: e.getBoundingClientRect(), c: style(e).fill})).filter(x => x.c != "none"));
  }
  return painted.get(s);
}

// The colour below a point of a picture's text: the last shape before it that covers the point.
function below(t, s, x, y) {
  let c = ground(s);
  for (const shape of shapes(s)) {
    if (!(shape.e.compareDocumentPosition(t.parent) & Node.DOCUMENT_POSITION_FOLLOWING)) break;
    const {r, e} = shape;
    if (x < r.left || x > r.right || y < r.top || y > r.bottom) continue;
    const at = new DOMPoint(x, y).matrixTransform(e.getScreenCTM().inverse());
    if (e.tagName != "rect" && !e.isPointInFill(at)) continue;
    const f = colour(shape.c);
    c = over([...f.slice(0, 3), f[3] * style(e).fillOpacity * style(e).opacity], c);
  }
  return c;
}

function contrast(all) {
  const said = new Set();
  for (const t of all) {
    const s = t.parent.closest("svg"), whole = s && (pictures.find(p => p.contains(s)) ?? s);
    const ofSvg = t.parent instanceof SVGElement && whole;
    if (t.parent.closest(":disabled, [aria-disabled=true]")) continue;
    let clear = 1;
    for (let a = t.parent; a; a = a.parentElement) clear *= style(a).opacity;
    const ink = colour(ofSvg ? style(t.parent).fill : style(t.parent).color);
    const y = (t.rect.top + t.rect.bottom) / 2;
    const xs = ofSvg ? [t.rect.left + 2, (t.rect.left + t.rect.right) / 2, t.rect.right - 2] : [0];
    for (const x of xs) {
      const paper = ofSvg ? below(t, whole, x, y) : ground(t.parent);
      const is = ratio(over([...ink.slice(0, 3), ink[3] * clear], paper), paper);
      const what = `${is.toFixed(2)} of ${style(t.parent).color} on ${paper.slice(0, 3).map(Math.round)}, ${named(t.parent)}`;
      const key = `${ink}${clear}${paper}`;
      if (is < CONTRAST && !said.has(key)) say("contrast", `${what}: "${short(t.node.data)}"`);
      if (is < CONTRAST) said.add(key);
    }
  }
}

// ---- the page ------------------------------------------------------------------------------

function whole(all) {
  if (!drawing && root.scrollWidth > innerWidth) say("wide", `${root.scrollWidth} of ${innerWidth} pixels`);
  if (!all.length) say("blank", "no text");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const sheet = drawing ? shapes(root)[0] : null;
  const paper = sheet ? colour(sheet.c) : ground(document.body ?? root);
  if (light(paper) < .2 != dark) say("scheme", `paper is ${paper.slice(0, 3)} where ${dark ? "dark" : "light"} is preferred`);
  if (drawing) return;
  if (!root.lang) say("no language", named(root));
  if (!document.title.trim()) say("no title", named(root));
  const heads = [...document.querySelectorAll("h1")].filter(seen).length;
  if (heads != 1) say("headings", `${heads} of the first level`);
  const ids = [...document.querySelectorAll("[id]")].map(e => e.id);
  for (const id of new Set(ids.filter((x, i) => ids.indexOf(x) != i))) say("id twice", id);
}

const all = texts();
whole(all);
cutOff([...all, ...images()]);
columns();
overlaps(all);
inPictures(all);
contrast(all);
return found;
})()
