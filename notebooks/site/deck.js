// The deck: arrows, space, Home and End turn the slides; d turns the colours; the address keeps the place.
const slides = [...document.querySelectorAll("section")];
const ROOM_PX = 640, LEAST = 0.5; // for heading and body; a figure is not made smaller than that: it scrolls

// What is too tall: the figure first, then all of the body.
function fit(slide) {
  const body = slide.querySelector(".body"), figure = slide.querySelector(".figure");
  const room = ROOM_PX - body.offsetTop + 40;
  if (figure) {
    const others = body.scrollHeight - figure.offsetHeight;
    const wide = figure.scrollWidth > 1152 ? 1152 / figure.scrollWidth : 1;
    const by = Math.min(wide, (room - others) / figure.offsetHeight);
    shrink(figure, by < LEAST ? 0.75 : by);
    if (by < LEAST) {
      figure.style.maxHeight = `${(room - others) / 0.75}px`;
      figure.style.overflowY = "auto";
      figure.tabIndex = 0;
    }
  }
  if (body.offsetHeight > room) shrink(body, room / body.offsetHeight);
}
function shrink(part, by) {
  if (by >= 1) return;
  part.style.width = "1152px";
  part.style.zoom = by;
}
slides.forEach(fit);

let place = 0;
function turn(to) {
  place = Math.max(0, Math.min(slides.length - 1, to));
  slides.forEach((slide, number) => slide.classList.toggle("now", number === place));
  history.replaceState(null, "", `#${place + 1}`);
}
const STEPS = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1};
document.addEventListener("keydown", event => {
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && event.target.tagName === "BUTTON") return;
  if (event.key === "Home" || event.key === "End") turn(event.key === "Home" ? 0 : slides.length - 1);
  else if (event.key === "d") {
    const root = document.documentElement, dark = getComputedStyle(root).getPropertyValue("color-scheme") !== "dark";
    root.dataset.theme = dark && root.dataset.theme !== "dark" ? "dark" : "light";
  } else if (event.key in STEPS) turn(place + STEPS[event.key]);
  else return;
  event.preventDefault();
});
for (const button of document.querySelectorAll("nav button")) button.onclick = () => turn(place + Number(button.dataset.step));
window.onhashchange = () => turn(Number(location.hash.slice(1)) - 1 || 0);
const scale = () => document.body.style.setProperty("--scale", Math.min(innerWidth / 1280, innerHeight / 720));
window.addEventListener("resize", scale);
scale();
turn(Number(location.hash.slice(1)) - 1 || 0);
