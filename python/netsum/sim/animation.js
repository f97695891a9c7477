"use strict";
// Colours the lines of a heat map by the moment that a slider shows. See animation.py.
for (const element of document.querySelectorAll("[data-animation]")) {
  const { links, times, levels, busy } = JSON.parse(element.dataset.animation);
  const values = Uint8Array.from(atob(busy), (letter) => letter.charCodeAt(0));
  const lines = element.querySelectorAll("svg line");
  const slider = element.querySelector("input");
  const button = element.querySelector("button");
  const output = element.querySelector("output");
  let playing = null;

  const show = (moment) => {
    for (let link = 0; link < links; link += 1) {
      const [colour, strength, thickness] = levels[values[link * times.length + moment]];
      lines[link].setAttribute("stroke", colour);
      lines[link].setAttribute("stroke-opacity", strength);
      lines[link].setAttribute("stroke-width", thickness);
    }
    slider.value = moment;
    output.textContent = times[moment];
  };
  const stop = () => {
    clearInterval(playing);
    playing = null;
    button.textContent = "play";
  };
  const play = () => {
    if (Number(slider.value) === times.length - 1) show(0);
    button.textContent = "pause";
    playing = setInterval(() => {
      const next = Number(slider.value) + 1;
      if (next < times.length) show(next);
      else stop();
    }, 50);
  };

  slider.max = times.length - 1;
  slider.addEventListener("input", () => {
    stop();
    show(Number(slider.value));
  });
  button.addEventListener("click", () => (playing === null ? play() : stop()));
  show(0);
}
