// What the theme leaves to pointers, for keys and for readers of the screen.
"use strict";

const WORDS = document.documentElement.lang.startsWith("zh")
  ? {menu: "菜单", search: "搜索", inside: "其下页面：", back: "返回：",
      table: "表格：", code: "代码：", picture: "图："}
  : {menu: "Menu", search: "Search", inside: "Pages of ", back: "Back from ",
      table: "Table: ", code: "Code: ", picture: "Picture: "};
const words = e => e.textContent.replace(/\s+/g, " ").trim();

// A label that opens something, or the sign in it: a button, which says whether that is open.
function button(e, label, name) {
  const toggle = document.getElementById(label.htmlFor);
  if (!toggle) return;
  const say = () => e.setAttribute("aria-expanded", toggle.checked);
  e.tabIndex = 0;
  e.setAttribute("role", "button");
  e.setAttribute("aria-label", name);
  e.addEventListener("keydown", pressed => {
    if (pressed.key != "Enter" && pressed.key != " ") return;
    pressed.preventDefault();
    pressed.stopPropagation();  // the theme clicks, too
    label.click();
  });
  toggle.addEventListener("change", say);
  say();
}

for (const label of document.querySelectorAll(".md-header__button[for=__drawer]")) button(label, label, WORDS.menu);
for (const label of document.querySelectorAll(".md-header__button[for=__search]")) button(label, label, WORDS.search);
for (const label of document.querySelectorAll("label.md-nav__link"))
  button(label, label, words(label) || WORDS.inside + words(label.parentElement));
for (const sign of document.querySelectorAll(".md-nav__title > .md-nav__icon"))
  button(sign, sign.parentElement, WORDS.back + words(sign.parentElement));

// While the menu is over the page, that is out of reach; Escape closes it.
const drawer = document.getElementById("__drawer"), menu = document.querySelector(".md-sidebar--primary");
const narrow = matchMedia("(max-width: 76.2344em)");

function behind() {
  const covered = drawer.checked && narrow.matches;
  for (const e of document.querySelectorAll(".md-header, .md-content, .md-footer, .md-skip")) e.inert = covered;
  return covered;
}

drawer.addEventListener("change", () => {
  const first = [...menu.querySelectorAll("a[href], [role=button]")].find(e => e.checkVisibility({visibilityProperty: true}));
  (behind() ? first : document.querySelector(".md-header__button[for=__drawer]"))?.focus();
});
narrow.addEventListener("change", behind);
addEventListener("keydown", e => {
  if (e.key == "Escape" && drawer.checked) drawer.click();
});

// A box that scrolls can be gone to, and says what is in it: its kind, and the heading above.
function name(box) {
  const heads = [...document.querySelectorAll("h1, h2, h3, h4")];
  const above = heads.filter(h => h.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING).at(-1);
  const kind = box.tagName == "P" ? WORDS.picture : box.tagName == "CODE" ? WORDS.code : WORDS.table;
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", kind + (above ? words(above).replace("¶", "") : document.title));
}

function look() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .md-typeset p:has(img)"))
    if (box.scrollWidth > box.clientWidth && box.tabIndex < 0) name(box);
}

new ResizeObserver(look).observe(document.body);
// The theme takes the way to a box away where there is no mouse.
new MutationObserver(look).observe(document.body, {subtree: true, attributeFilter: ["tabindex"]});
