// A canvas that fills the width of its place and is drawn anew when its data, its size or the theme changes.

import { html, useLayoutEffect, useRef, useState } from "./vendor.js";
import { onTheme } from "./theme.js";

/** `draw(context, width, height)` draws in CSS pixels. `height(width)`: of the picture. */
export const Canvas = ({ draw, height, label, ...events }) => {
  const canvas = useRef(null);
  const [width, setWidth] = useState(0);
  const [, setTheme] = useState(0);
  useLayoutEffect(() => {
    const place = canvas.current.parentElement;
    const measure = () => setWidth(place.clientWidth);
    const watch = new ResizeObserver(measure);
    watch.observe(place);
    measure();
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => onTheme(() => setTheme((count) => count + 1)), []);
  const tall = width ? height(width) : 1;
  useLayoutEffect(() => {
    if (!width) return;
    const element = canvas.current;
    const ratio = window.devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(tall * ratio)];
    if (element.width !== across || element.height !== down) [element.width, element.height] = [across, down];
    const context = element.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, tall);
    draw(context, width, tall);
  });
  return html`<canvas ref=${canvas} role="img" aria-label=${label} style=${{ height: `${tall}px` }} ...${events} />`;
};

/** Where a pointer is on a canvas, in CSS pixels. */
export const pointer = (event) => {
  const box = event.currentTarget.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
