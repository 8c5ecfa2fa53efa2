// Charts over the last minutes, in SVG. A chart is made once and updated with new points.
import { h, svg, replace } from './dom.js';

const kHeight = 168;
const kLeft = 46;
const kRight = 6;
const kTop = 10;
const kBottom = 22;
const kJoin = 4;  // points

// options: title, series [{label, kind 's1'..'s4', value(point) -> number or null}], format(value),
// shape 'line' | 'area' | 'bars', max (fixed top), empty (text).
export class Chart {
  constructor(options) {
    this.options = options;
    this.points = [];
    this.at = -1;
    this.svg = svg('svg', { role: 'img', tabindex: '0' });
    this.tip = h('div', { class: 'tip', hidden: true });
    this.note = h('div', { class: 'chart-empty', hidden: true }, options.empty);
    const legend = h('div', { class: 'legend' }, options.series.map(
      (s) => h('span', { class: s.kind }, h('i', {}), s.label)));
    this.element = h('section', { class: 'card', 'aria-label': options.title },
      h('div', { class: 'card-head' }, h('h2', {}, options.title), h('span', { class: 'grow' }), legend),
      h('div', { class: 'chart' }, this.svg, this.note, this.tip));
    this.svg.addEventListener('pointermove', (event) => this.point(event.offsetX));
    this.svg.addEventListener('pointerleave', () => this.show(-1));
    this.svg.addEventListener('blur', () => this.show(-1));
    this.svg.addEventListener('keydown', (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(points) {
    this.points = points;
    this.draw();
  }

  x(i) {
    const n = Math.max(this.points.length - 1, 1);
    return kLeft + (this.width - kLeft - kRight) * (i / n);
  }

  y(value) {
    return kTop + (kHeight - kTop - kBottom) * (1 - Math.min(value / this.top, 1));
  }

  draw() {
    this.width = this.svg.clientWidth;
    if (!this.width || !this.points.length) return;
    const { series, format, shape, title } = this.options;
    const values = series.map((s) => this.points.map(s.value));
    const stacked = shape === 'bars';
    const sums = this.points.map((_, i) => values.reduce((sum, v) => stacked ? sum + (v[i] || 0) : Math.max(sum, v[i] || 0), 0));
    const known = values.some((v) => v.some((x) => x !== null));
    const largest = Math.max(...sums, 0);
    this.top = this.options.max || niceTop(largest, this.options.whole);
    const parts = [];
    const nothing = this.options.max ? !known : largest === 0;
    for (const share of nothing ? [0] : [0, 0.5, 1]) {
      const y = this.y(this.top * share);
      parts.push(svg('line', { class: 'grid', x1: kLeft, x2: this.width - kRight, y1: y, y2: y }));
      parts.push(svg('text', { class: 'axis', x: kLeft - 8, y: y + 4, 'text-anchor': 'end' }, format(this.top * share)));
    }
    for (const [share, label, anchor] of [[0, '5 min ago', 'start'], [1, 'now', 'end']]) {
      parts.push(svg('text', { class: 'axis', x: kLeft + (this.width - kLeft - kRight) * share, y: kHeight - 5, 'text-anchor': anchor }, label));
    }
    if (stacked) parts.push(...this.bars(values, series));
    else values.forEach((v, i) => parts.push(...this.lines(v, series[i].kind, shape === 'area')));
    this.cursor = svg('g', {});
    parts.push(this.cursor);
    replace(this.svg, parts);
    this.svg.setAttribute('aria-label', `${title}, last five minutes. ${this.summary(values)}`);
    this.note.hidden = !nothing;
    this.show(this.at);
  }

  summary(values) {
    return this.options.series.map((s, i) => {
      const last = values[i].findLast((x) => x !== null);
      return last === undefined ? `${s.label}: none` : `${s.label}: ${this.options.format(last)}`;
    }).join(', ');
  }

  // Lines join what is no more than 20 s apart; what stands alone is a dot. `area` also fills what
  // is below.
  lines(values, kind, area) {
    const runs = [];
    values.forEach((value, i) => {
      if (value === null) return;
      const point = [this.x(i), this.y(value)];
      const run = runs.at(-1);
      if (run && i - run.last <= kJoin) {
        run.points.push(point);
        run.last = i;
      } else {
        runs.push({ points: [point], last: i });
      }
    });
    const out = [];
    for (const { points } of runs) {
      const text = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
      if (points.length === 1) {
        out.push(svg('circle', { class: `dot ${kind}`, cx: points[0][0], cy: points[0][1], r: 2.75 }));
        continue;
      }
      if (area) {
        const base = this.y(0).toFixed(1);
        out.push(svg('polygon', { class: `area ${kind}`, points: `${points[0][0].toFixed(1)},${base} ${text} ${points.at(-1)[0].toFixed(1)},${base}` }));
      }
      out.push(svg('polyline', { class: `line ${kind}`, points: text }));
    }
    return out;
  }

  bars(values, series) {
    const step = (this.width - kLeft - kRight) / this.points.length;
    const out = [];
    this.points.forEach((_, i) => {
      let below = 0;
      values.forEach((v, s) => {
        const value = v[i] || 0;
        if (value > 0) {
          const y = this.y(below + value);
          out.push(svg('rect', {
            class: `bar ${series[s].kind}`, x: (kLeft + step * i + step * 0.14).toFixed(1), width: (step * 0.72).toFixed(1),
            y: y.toFixed(1), height: Math.max(this.y(below) - y, 1).toFixed(1),
          }));
        }
        below += value;
      });
    });
    return out;
  }

  point(offset) {
    if (!this.points.length) return;
    const share = (offset - kLeft) / (this.width - kLeft - kRight);
    this.show(Math.round(Math.min(Math.max(share, 0), 1) * (this.points.length - 1)));
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === 'Escape') this.show(-1);
    if (!step || !this.points.length) return;
    event.preventDefault();
    const from = this.at < 0 ? this.points.length : this.at;
    this.show(Math.min(Math.max(from + step, 0), this.points.length - 1));
  }

  show(i) {
    this.at = i;
    this.tip.hidden = i < 0;
    if (!this.cursor) return;
    replace(this.cursor);
    if (i < 0) return;
    const x = this.x(i);
    this.cursor.append(svg('line', { class: 'cursor', x1: x, x2: x, y1: kTop, y2: kHeight - kBottom }));
    const { series, format } = this.options;
    const seconds = Math.round((this.points.at(-1).time - this.points[i].time) / 1e6);
    replace(this.tip, h('div', {}, seconds === 0 ? 'now' : `${seconds} s ago`), series.map((s) => {
      const value = s.value(this.points[i]);
      return h('div', { class: s.kind }, h('i', {}), s.label, h('b', {}, value === null ? 'none' : format(value)));
    }));
    const left = x + 16 > this.width / 2 ? x - this.tip.offsetWidth + 6 : x + 26;
    this.tip.style.left = `${Math.min(Math.max(left, 4), Math.max(this.width + 28 - this.tip.offsetWidth, 4))}px`;
  }
}

// 1, 2 or 5 times a power of ten, not below `value`.
function niceTop(value, whole) {
  if (!(value > 0)) return whole ? 2 : 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((s) => value <= s * power * 1.0001);
  return Math.max(step * power, whole ? 2 : 0);
}
