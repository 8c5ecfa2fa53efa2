// The fusion picture: which operators became which kernel, drawn as a layered graph of the program's
// steps, and why, from the compiler's decisions.
import { h, svg, replace, plural, setText } from './dom.js';

const kWidth = 210;
const kRow = 17;
const kHead = 38;
const kMaxRows = 6;
const kGapX = 26;
const kGapY = 42;
const kPad = 22;
const kMaxDrawn = 800;
const kStyleNames = { contraction: 'matrix product', reduction: 'reduction', pointwise: 'elementwise', library: 'left to the library' };

// What the picture shows, from the details and the IR: nodes {index, title, ops, style, symbol,
// item, from: Set, to: Set} in the order of the program.
export function buildSteps(detail, items) {
  const launches = detail.steps.map((step, index) => ({ step, index })).filter(({ step }) => step.kind !== 'copy');
  const named = launches.length === items.length;
  const writer = new Map();
  const nodes = launches.slice(0, kMaxDrawn).map(({ step, index }, i) => {
    const item = named ? items[i] : null;
    const kernel = detail.kernels.findIndex((k) => k.symbol === step.kernel);
    const ops = item && item.ops.length ? item.ops : step.kind === 'library' ? [step.node || step.op] : kernel >= 0 ? detail.kernels[kernel].ops : [];
    const node = {
      index, kernel, ops, item, from: new Set(), to: new Set(), style: step.kind === 'library' ? 'library' : item ? item.style : 'pointwise',
      title: step.kind === 'library' ? step.op : mainOp(detail, ops),
    };
    if (item) {
      for (const name of item.reads) {
        if (writer.has(name) && writer.get(name) !== i) node.from.add(writer.get(name));
      }
      for (const name of item.writes) writer.set(name, i);
    }
    return node;
  });
  nodes.forEach((node, i) => node.from.forEach((j) => nodes[j].to.add(i)));
  return nodes;
}

// The operator that a kernel is best known by.
function mainOp(detail, ops) {
  const byName = operators(detail);
  const short = ops.map((name) => (byName.has(name) ? shortOp(byName.get(name).op) : name));
  const heavy = short.find((op) => /mm|conv|attention|softmax|norm|embedding|sort|topk/.test(op));
  return (heavy || short.at(-1) || 'kernel').replace(/^_+(?=.)/, '');
}

function operators(detail) {
  if (!detail.byName) detail.byName = new Map(detail.nodes.map((node) => [node.name, node]));
  return detail.byName;
}

export const shortOp = (op) => op.replace(/^aten\./, '').replace(/\.(default|Tensor)$/, '');

// Decisions name the kernels of the IR before fusion: their operators, by name.
export function decisionOps(lowered) {
  const ops = new Map();
  for (const item of lowered) ops.set(item.name, item.ops[0] || item.name);
  return (name) => ops.get(name) || name.replace(/^k_/, '');
}

// Rows by longest path, each row ordered by where its sources stand.
function layOut(nodes) {
  const rows = [];
  nodes.forEach((node) => {
    node.row = 0;
    for (const j of node.from) node.row = Math.max(node.row, nodes[j].row + 1);
    (rows[node.row] ||= []).push(node);
  });
  let y = kPad;
  const widest = Math.max(...rows.map((row) => row.length));
  const total = Math.max(widest, 1) * (kWidth + kGapX) - kGapX + 2 * kPad;
  for (const row of rows) {
    const place = (node) => {
      const xs = [...node.from].map((j) => nodes[j].x + kWidth / 2);
      return xs.length ? xs.reduce((a, b) => a + b) / xs.length : 0;
    };
    row.sort((a, b) => place(a) - place(b) || a.index - b.index);
    const width = row.length * (kWidth + kGapX) - kGapX;
    let x = (total - width) / 2;
    let tallest = 0;
    for (const node of row) {
      node.shown = node.ops.length > kMaxRows ? kMaxRows - 1 : node.ops.length;
      node.height = kHead + kRow * Math.max(node.ops.length > kMaxRows ? kMaxRows : node.ops.length, 1) + 4;
      node.x = x;
      node.y = y;
      x += kWidth + kGapX;
      tallest = Math.max(tallest, node.height);
    }
    y += tallest + kGapY;
  }
  return { width: total, height: y - kGapY + kPad };
}

const clip = (text, chars) => (text.length > chars ? `${text.slice(0, chars - 1)}\u2026` : text);

export class FusionView {
  // `links(node)`: elements that lead on from a step.
  constructor(detail, fused, lowered, links, onselect) {
    this.detail = detail;
    this.links = links;
    this.onselect = onselect;
    this.nodes = buildSteps(detail, fused);
    this.left = detail.steps.filter((step) => step.kind !== 'copy').length - this.nodes.length;
    this.opOf = decisionOps(lowered);
    this.decisions = detail.decisions.map((d) => ({ ...d, from: this.opOf(d.producer), to: this.opOf(d.consumer) }));
    this.aside = h('div', { class: 'aside', 'aria-live': 'polite', 'aria-label': 'Selected step' });
    this.zoom = 1;
    this.element = this.build();
    this.select(-1);
  }

  build() {
    if (!this.nodes.length) return h('div', { class: 'empty' }, h('strong', {}, 'This program has no steps.'), 'Its outputs are its inputs.');
    this.size = layOut(this.nodes);
    const edges = svg('g', {});
    this.edges = [];
    this.nodes.forEach((node, i) => node.from.forEach((j) => {
      const path = edgePath(this.nodes[j], node);
      const line = svg('path', { class: 'edge', d: path, 'marker-end': 'url(#arrow)' });
      this.edges.push({ from: j, to: i, line });
      edges.append(line);
    }));
    this.boxes = this.nodes.map((node, i) => this.box(node, i));
    const marker = (id, kind) => svg('marker', { id, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: 'userSpaceOnUse', orient: 'auto' },
      svg('path', { class: kind, d: 'M0 0 8 4 0 8z' }));
    this.svg = svg('svg', { role: 'group', 'aria-label': `Fusion graph of ${plural(this.nodes.length, 'step')}`, viewBox: `0 0 ${this.size.width} ${this.size.height}` },
      svg('defs', {}, marker('arrow', 'arrow'), marker('arrow-on', 'arrow-on')), edges, this.boxes);
    this.canvas = h('div', { class: 'canvas', tabindex: '-1' }, this.svg);
    this.setZoom(1);
    const native = this.nodes.filter((node) => node.style !== 'library');
    const ops = new Set(this.nodes.flatMap((node) => node.ops)).size;
    const styles = ['contraction', 'reduction', 'pointwise', 'library'].filter((style) => this.nodes.some((node) => node.style === style));
    const button = (text, label, action) => h('button', { class: 'button', type: 'button', 'aria-label': label, onclick: action }, text);
    return h('div', {},
      h('div', { class: 'card-head' },
        h('span', { class: 'small muted' }, `${plural(ops, 'operator')} in ${plural(native.length, 'launch', 'launches')} of ${plural(this.detail.kernels.length, 'kernel')}${native.length < this.nodes.length ? `, ${plural(this.nodes.length - native.length, 'library step')}` : ''}${this.left > 0 ? `; ${plural(this.left, 'later step')} not drawn` : ''}`),
        h('span', { class: 'grow' }),
        h('span', { class: 'legend' }, styles.map((style) => h('span', {}, h('i', { class: `swatch kind-${style}` }), kStyleNames[style]))),
        h('span', { class: 'links' },
          button('\u2212', 'Zoom out', () => this.setZoom(this.zoom / 1.25)),
          button('+', 'Zoom in', () => this.setZoom(this.zoom * 1.25)),
          button('Fit', 'Fit to width', () => this.fit()))),
      h('div', { class: 'fusion card-body-flush' }, this.canvas, this.aside));
  }

  box(node, i) {
    const bottom = node.y + kHead;
    const rows = node.ops.slice(0, node.shown).map((name, r) => svg('text', { class: 'op', x: node.x + 14, y: bottom + kRow * r + 9 }, clip(name, 26)));
    if (node.ops.length > node.shown) {
      rows.push(svg('text', { class: 'more', x: node.x + 14, y: bottom + kRow * node.shown + 9 }, `and ${node.ops.length - node.shown} more`));
    }
    return svg('g', {
      class: 'node', tabindex: '0', role: 'button', 'data-step': node.index, 'aria-pressed': 'false',
      'aria-label': `Step ${node.index}, ${node.title}, ${kStyleNames[node.style]}: ${node.ops.join(', ')}`,
      onclick: () => this.select(i, true),
      onkeydown: (event) => this.key(event, i),
    },
    svg('title', {}, `${node.title}: ${node.ops.join(', ')}`),
    svg('rect', { class: 'node-box', x: node.x, y: node.y, width: kWidth, height: node.height, rx: 8 }),
    svg('rect', { class: `kind-${node.style}`, x: node.x, y: node.y + 8, width: 4, height: node.height - 16, rx: 2 }),
    svg('text', { class: 'head', x: node.x + 14, y: node.y + 21 }, clip(node.title, 22)),
    svg('text', { class: 'idx', x: node.x + kWidth - 10, y: node.y + 21, 'text-anchor': 'end' }, `#${node.index}`),
    rows);
  }

  // Enter selects; arrows follow the data.
  key(event, i) {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this.select(i, true);
      return;
    }
    const node = this.nodes[i];
    const next = { ArrowDown: [...node.to][0], ArrowUp: [...node.from][0] }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.boxes[next].focus();
    this.select(next, true);
  }

  setZoom(zoom) {
    this.zoom = Math.min(Math.max(zoom, 0.15), 2.5);
    this.svg.setAttribute('width', this.size.width * this.zoom);
    this.svg.setAttribute('height', this.size.height * this.zoom);
  }

  fit() {
    this.setZoom(Math.min(this.canvas.clientWidth / this.size.width, 1.5));
  }

  // Once it is on the page: narrow enough for it.
  shown() {
    if (this.canvas && this.canvas.clientWidth < this.size.width) this.setZoom(Math.max(this.canvas.clientWidth / this.size.width, 0.6));
    if (this.selected >= 0) this.reveal();
  }

  reveal() {
    const node = this.nodes[this.selected];
    this.canvas.scrollTo({
      top: node.y * this.zoom - this.canvas.clientHeight / 3,
      left: (node.x + kWidth / 2) * this.zoom - this.canvas.clientWidth / 2,
    });
  }

  selectStep(index) {
    this.select(this.nodes.findIndex((node) => node.index === index), false);
  }

  select(i, byUser) {
    this.selected = i;
    if (!this.nodes.length) return;
    const node = this.nodes[i];
    const near = new Set(node ? [i, ...node.from, ...node.to] : []);
    this.boxes.forEach((box, j) => {
      box.classList.toggle('on', j === i);
      box.classList.toggle('dim', !!node && !near.has(j));
      box.setAttribute('aria-pressed', j === i);
    });
    for (const { from, to, line } of this.edges) {
      const on = from === i || to === i;
      line.classList.toggle('on', on);
      line.setAttribute('marker-end', on ? 'url(#arrow-on)' : 'url(#arrow)');
    }
    replace(this.aside, node ? this.describe(node) : [
      h('h3', {}, 'Select a step'),
      h('p', { class: 'muted' }, 'Each box is one launch: the operators that were fused into it, from first to last. Lines carry data between launches. Select one to see why its operators were put together, and why no more were.'),
    ]);
    if (byUser) this.onselect(node.index);
  }

  describe(node) {
    const byName = operators(this.detail);
    const inside = new Set(node.ops);
    const near = this.decisions.filter((d) => inside.has(d.from) || inside.has(d.to));
    const fused = near.filter((d) => d.fused);
    const apart = near.filter((d) => !d.fused);
    const list = (decisions) => h('ul', { class: 'why' }, decisions.map((d) => h('li', {},
      h('span', { class: 'pair' }, `${d.from} \u2192 ${d.to}`), h('span', { class: 'muted' }, d.reason))));
    const kernel = this.detail.kernels[node.kernel];
    return [
      h('section', {},
        h('h3', {}, `#${node.index} ${node.title}`),
        h('p', { class: 'muted small' }, kStyleNames[node.style], kernel ? [', kernel ', h('span', { class: 'mono' }, kernel.symbol)] : null),
        h('div', { class: 'links' }, this.links(node))),
      h('section', {}, h('h3', {}, plural(node.ops.length, 'operator')),
        h('ul', { class: 'ops' }, node.ops.map((name) => {
          const op = byName.get(name);
          const chip = h('li', { class: 'op-chip', title: op ? [op.op, op.type, op.location].filter(Boolean).join('\n') : '' }, name);
          if (op && shortOp(op.op) !== name) chip.append(h('span', { class: 'muted' }, ` ${shortOp(op.op)}`));
          return chip;
        }))),
      fused.length ? h('section', {}, h('h3', {}, 'Fused because'), list(fused)) : null,
      apart.length ? h('section', {}, h('h3', {}, 'Kept apart because'), list(apart)) : null,
      near.length ? null : h('section', {}, h('p', { class: 'muted' }, 'No decision was about its operators: nothing could have been fused with them.')),
    ];
  }
}

// Down from the middle of the one to the middle of the other.
function edgePath(from, to) {
  const x1 = from.x + kWidth / 2;
  const y1 = from.y + from.height;
  const x2 = to.x + kWidth / 2;
  const y2 = to.y - 1;
  const bend = Math.max(Math.min((y2 - y1) / 2, 60), 18);
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}
