// A line chart with a legend that is text. Draws with uPlot.

import { h } from "./dom.js";
import { clock, when } from "./format.js";

const charts = new Set();
const scheme = matchMedia("(prefers-color-scheme: dark)");
scheme.addEventListener("change", () => charts.forEach((chart) => chart.draw()));

// Steps of an axis of bytes: 1, 2, 5, 10 ... 500 of each unit, and of an axis of numbers.
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const BYTE_STEPS = [0, 1, 2, 3, 4, 5].flatMap((power) => STEPS.map((step) => step * 1024 ** power));

/** A longer time without a sample, in steps, is a gap. */
const GAP_STEPS = 3;

/** The places of values without a neighbour, which no line shows. */
const alone = (values) => values.flatMap((value, place) => ((value ?? null) !== null && (values[place - 1] ?? null) === null && (values[place + 1] ?? null) === null ? [place] : []));

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const timeLabel = (time, stepS) => (stepS >= 86400 ? when(time).slice(0, 10) : stepS >= 21600 ? when(time).slice(5) : clock(time).slice(0, stepS < 60 ? 8 : 5));

/**
 * `series`: `key`, `label`. `isBytes`: the axis has steps of 1024. `isArea`: filled steps, with dates below, for what adds
 * up. `top`: the end of the axis. `spanS`: the time that is shown; without it, that of the data.
 */
export class Chart {
  constructor(title, format, series, { isBytes = false, isArea = false, top = null, spanS = null } = {}) {
    this.title = title;
    this.format = format;
    this.series = series;
    this.options = { isBytes, isArea, top };
    this.spanS = spanS;
    this.columns = null;
    this.values = series.map(() => h("b", {}, "–"));
    const entries = series.map((one, place) => {
      const entry = h("li", {}, one.label, " ", this.values[place]);
      entry.style.setProperty("--colour", `var(--c${place + 1})`);
      return entry;
    });
    this.plot = h("div", { class: "plot", "aria-hidden": "true" });
    this.element = h("figure", { class: "panel" }, h("figcaption", {}, title), h("ul", { class: "legend" }, entries), this.plot);
    this.observer = new ResizeObserver(() => this.uplot?.setSize(this.size()));
    this.observer.observe(this.plot);
    charts.add(this);
  }

  size() {
    return { width: Math.max(this.plot.clientWidth, 120), height: 190 };
  }

  /** Show columns: `time`, and the key of each series. */
  set(columns) {
    this.columns = columns;
    const data = this.data();
    if (this.uplot) this.uplot.setData(data);
    else if (this.plot.isConnected) this.draw();
    this.show(columns.time.length - 1);
  }

  /** The columns, with an empty point where samples are missing: no line is drawn over them. */
  data() {
    const { time } = this.columns;
    const columns = [time, ...this.series.map((one) => this.columns[one.key])];
    if (!this.spanS || time.length < 3) return columns;
    const steps = time.slice(1).map((end, place) => end - time[place]);
    const longest = GAP_STEPS * [...steps].sort((a, b) => a - b)[steps.length >> 1];
    if (!steps.some((step) => step > longest)) return columns;
    return columns.map((column) => column.flatMap((value, place) => (place && steps[place - 1] > longest ? [column === time ? time[place] - longest / 2 : null, value] : [value])));
  }

  show(place) {
    this.series.forEach((one, number) => {
      this.values[number].textContent = place < 0 ? "–" : this.format(this.columns[one.key][place]);
    });
  }

  draw() {
    this.uplot?.destroy();
    if (!this.columns) return;
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const { isArea, isBytes, top } = this.options;
    const least = isBytes ? 1024 : 0;
    this.uplot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: {
        x: { range: (_, min, max) => (this.spanS ? [max - this.spanS, max] : [min, Math.max(max, min + 60)]) },
        y: { range: (_, __, max) => [0, top || Math.max(max * 1.08, least) || 1] },
      },
      axes: [
        { ...axis, size: 26, space: 86, values: (_, times) => times.map((time) => timeLabel(time, times.length > 1 ? times[1] - times[0] : 60)) },
        { ...axis, size: 72, space: 34, incrs: isBytes ? BYTE_STEPS : undefined, values: (_, values) => values.map((value) => this.format(value)) },
      ],
      series: [
        { value: (_, time) => (time ? when(time) : "") },
        ...this.series.map((one, place) => ({
          label: one.label,
          stroke: colour(`--c${place + 1}`),
          width: 1.6,
          fill: isArea ? `${colour(`--c${place + 1}`)}22` : undefined,
          paths: isArea ? uPlot.paths.stepped({ align: 1 }) : undefined,
          points: { show: true, size: 4, filter: (plot, number) => alone(plot.data[number]) },
        })),
      ],
      hooks: { setCursor: [(plot) => this.show(plot.cursor.idx === null ? this.columns.time.length - 1 : this.columns.time.indexOf(plot.data[0][plot.cursor.idx]))] },
    }, this.data(), this.plot);
  }

  close() {
    charts.delete(this);
    this.observer.disconnect();
    this.uplot?.destroy();
  }
}
