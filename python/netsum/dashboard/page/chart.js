// Curves over time, by uPlot.

import { html, uPlot, useLayoutEffect, useRef, useState } from "./vendor.js";
import { clock } from "./format.js";
import { colours, onTheme } from "./theme.js";

/** `series`: [{ name, colour (number), value (text of a value) }]; `data`: times and a column for each of them. */
export const Chart = ({ title, data, series, axis }) => {
  const place = useRef(null);
  const plot = useRef(null);
  const [theme, setTheme] = useState(0);
  useLayoutEffect(() => onTheme(() => setTheme((count) => count + 1)), []);
  useLayoutEffect(() => {
    const paint = colours();
    const grid = { stroke: paint.edge, width: 1 };
    const font = "12px system-ui, sans-serif";
    const options = {
      width: place.current.clientWidth,
      height: 190,
      legend: { live: true },
      cursor: { y: false },
      scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [
        { stroke: paint.soft, grid, ticks: grid, font, space: 80, values: (_, ticks) => ticks.map(clock) },
        { stroke: paint.soft, grid, ticks: grid, font, size: 84, values: (_, ticks) => ticks.map(axis) },
      ],
      series: [
        { label: "time", value: (_, at) => (at == null ? "–" : clock(at)) },
        ...series.map((each) => ({
          label: each.name,
          stroke: paint.series[each.colour],
          width: 2,
          points: { show: false },
          value: (_, value) => (value == null ? "–" : axis(value)),
        })),
      ],
    };
    plot.current = new uPlot(options, data, place.current);
    const watch = new ResizeObserver(() => plot.current?.setSize({ width: place.current.clientWidth, height: 190 }));
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [theme]);
  useLayoutEffect(() => plot.current?.setData(data), [data]);
  return html`<figure><figcaption>${title}</figcaption><div class="chart" ref=${place} /></figure>`;
};
