// The book's page: theme, search, copy buttons, flipbooks. No kernel, no network, works from file:// too.
const say = LABKIT, root = document.documentElement, at = selector => [...document.querySelectorAll(selector)];
const make = (tag, set = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), set);
  made.append(...children);
  return made;
};

// theme
const theme = document.getElementById("theme");
theme.value = root.dataset.theme;
theme.onchange = () => {
  root.dataset.theme = theme.value;
  try { localStorage.setItem("labkit-theme", theme.value); } catch { /* kept nowhere */ }
};

// the other language opens at the same place
document.getElementById("switch").onclick = event => {
  const seen = at("main :is(h1, h2, h3)[id]").filter(each => each.getBoundingClientRect().top < 150).pop();
  if (seen && window.scrollY > 200) event.currentTarget.hash = seen.id;
};

// contents are closed where they would push the text away
const narrow = matchMedia("(max-width: 66rem)"), contents = document.querySelector(".columns > nav details");
const fit = () => { contents.open = !narrow.matches; };
narrow.onchange = fit;
fit();

// what is wider than its place is scrolled by keyboard too
const reach = () => {
  for (const each of at("main pre, .scroll, .rich, .labkit-page"))
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; else each.removeAttribute("tabindex");
};
for (const moment of ["resize", "load"]) window.addEventListener(moment, reach);
document.fonts.ready.then(reach); // another font is wider
document.addEventListener("toggle", reach, true); // what was closed had no width
reach();

// copy
for (const block of at(".code")) {
  const button = make("button", {type: "button", textContent: say.copy});
  button.onclick = async () => {
    const text = block.querySelector("pre").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", {value: text});
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = say.copied;
    setTimeout(() => { button.textContent = say.copy; }, 1500);
  };
  button.setAttribute("aria-live", "polite");
  block.append(button);
}

// search: every word must occur; a heading that has them comes first
const input = document.getElementById("search"), found = document.getElementById("found");
const load = () => window.LABKIT_INDEX ? Promise.resolve() : (load.once ??= new Promise(done =>
  document.head.append(make("script", {src: say.index, onload: done}))));
const hits = words => LABKIT_INDEX.map(part => {
  const heading = part[2].toLowerCase(), text = part[3].toLowerCase();
  if (!words.every(word => heading.includes(word) || text.includes(word))) return null;
  return {part, score: words.reduce((sum, word) => sum + (heading.includes(word) ? 10 : 0)
    + Math.min(5, text.split(word).length - 1), 0)};
}).filter(Boolean).sort((a, b) => b.score - a.score);
const excerpt = (text, words) => {
  const first = Math.max(0, Math.min(...words.map(word => text.toLowerCase().indexOf(word)).filter(i => i >= 0)));
  const from = Number.isFinite(first) ? Math.max(0, first - 40) : 0, piece = text.slice(from, from + 140);
  const pattern = new RegExp(`(${words.map(word => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "i");
  return [from ? "… " : "", ...piece.split(pattern).map((bit, i) => i % 2 ? make("mark", {}, bit) : bit)];
};
input.onfocus = load;
input.oninput = async () => {
  await load();
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.hidden = !words.length;
  if (!words.length) return;
  const list = hits(words).slice(0, 20).map(({part: [page, anchor, heading, text]}) => make("a",
    {href: `${page}.html${anchor && "#" + anchor}`, onclick: shut}, make("b", {}, `${page.slice(0, 2)} ${heading}`), make("br"),
    ...excerpt(text, words)));
  found.replaceChildren(...(list.length ? list : [make("p", {role: "status"}, say.none)]));
};
function shut() { found.hidden = true; }
document.addEventListener("keydown", event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); input.focus(); }
  if (event.key === "Escape") shut();
  const links = [...found.querySelectorAll("a")], step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  if (!step || found.hidden || !event.composedPath().some(each => each.classList?.contains("search"))) return;
  event.preventDefault();
  const next = links.indexOf(document.activeElement) + step;
  (next < 0 ? input : links[Math.min(next, links.length - 1)])?.focus();
});
document.addEventListener("click", event => { if (!event.target.closest(".search")) shut(); });
