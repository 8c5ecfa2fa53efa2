// The first view: figures, charts, compiles, tenants, caches.
import { h, replace, setText, number, count, plural, duration, durationParts, bytes, ago, clock, shortKey, chip, card, tabs, loading } from './dom.js';
import { Chart } from './charts.js';

const kListed = 100;
const kSlotSeconds = 5;

// Rounded down: 100 says that nothing missed.
const hitRate = (hits, lookups) => (hits === lookups ? '100' : (Math.floor((1000 * hits) / lookups) / 10).toFixed(1));

export class Overview {
  constructor() {
    this.title = '';
    this.list = 'recent';
    this.filter = '';
    this.rows = new Map();
    this.error = h('div', { class: 'notice', role: 'alert', hidden: true });
    this.waiting = loading('Asking the server');
    this.body = h('div', { hidden: true });
    this.body.style.display = 'contents';
    this.element = h('div', {}, this.error, this.waiting, this.body);
    this.element.style.display = 'contents';
    this.build();
  }

  accepts(route) {
    return route.parts.length === 0;
  }

  needs() {
    return `/api/v1/activity?recent=${kListed}&slowest=50`;
  }

  close() {}

  build() {
    this.tiles = ['Hit rate', 'Hit latency', 'Compile latency', 'Jobs and workers'].map((label) => {
      const value = h('div', { class: 'value' });
      const foot = h('div', { class: 'foot' });
      return { value, foot, element: h('div', { class: 'card tile' }, h('div', { class: 'label' }, label), value, foot) };
    });
    const quantile = (name, kind, field) => ({
      label: name, kind,
      value: (p) => (number(p[field].count) > 0 ? p[field][`${name}_ms`] : null),
    });
    const axis = (ms) => (ms === 0 ? '0' : duration(ms));
    this.charts = [
      new Chart({
        title: 'Compile latency', format: axis, shape: 'line', empty: 'No compile in the last five minutes',
        series: [quantile('p50', 's1', 'compile_latency'), quantile('p95', 's2', 'compile_latency'), quantile('p99', 's3', 'compile_latency')],
      }),
      new Chart({
        title: 'Hit rate', format: (x) => `${Math.round(x)}\u00a0%`, shape: 'area', max: 100, empty: 'No lookup in the last five minutes',
        series: [{
          label: 'hits of lookups', kind: 's1',
          value: (p) => (p.hits + p.misses > 0 ? (100 * p.hits) / (p.hits + p.misses) : null),
        }],
      }),
      new Chart({
        title: 'Lookups a second', format: (x) => (x < 10 ? String(Math.round(x * 100) / 100) : count(x)), shape: 'bars', empty: 'No lookup in the last five minutes',
        series: [
          { label: 'hits', kind: 's1', value: (p) => p.hits / kSlotSeconds },
          { label: 'misses', kind: 's2', value: (p) => p.misses / kSlotSeconds },
        ],
      }),
      new Chart({
        title: 'Jobs', format: (x) => String(Math.round(x * 10) / 10), shape: 'bars', whole: true, empty: 'No job in the last five minutes',
        series: [
          { label: 'running', kind: 's1', value: (p) => p.jobs_running },
          { label: 'queued', kind: 's2', value: (p) => p.jobs_queued },
        ],
      }),
    ];
    this.runningBody = h('tbody', {});
    this.running = card('Running and queued', this.runningCount = h('span', { class: 'muted small' }),
      h('div', { class: 'table-wrap' }, jobTable('Compiles that run or wait', ['Graph', 'Tenant', 'Stage', 'Kernels', 'For', 'Waiters'], this.runningBody)));
    this.tenantBody = h('tbody', {});
    this.cacheBody = h('tbody', {});
    replace(this.body,
      h('h1', { class: 'sr-only' }, 'Overview'),
      h('div', { class: 'tiles' }, this.tiles.map((t) => t.element)),
      h('div', { class: 'charts' }, this.charts.map((c) => c.element)),
      this.running, this.buildCompiles(),
      h('div', { class: 'halves' },
        card('Tenants', null, h('div', { class: 'table-wrap' },
          plainTable('Tenants', ['Tenant', 'Queued', 'Running', 'Compiles', 'Hits', 'Refused'], this.tenantBody))),
        card('Caches', null, h('div', { class: 'table-wrap' },
          plainTable('Caches', ['Kind', 'Tier', 'Entries', 'Size'], this.cacheBody)))));
  }

  buildCompiles() {
    this.compilesBody = h('tbody', {});
    this.compilesNote = h('div', { class: 'empty', hidden: true });
    this.compilesTable = jobTable('Compiles', ['Graph', 'Target', 'Tenant', 'Finished', 'Took', 'Kernels', 'Waiters', 'Outcome'], this.compilesBody);
    const choice = tabs('Which compiles', [{ id: 'recent', label: 'Recent' }, { id: 'slowest', label: 'Slowest of a day' }], this.list, (id) => {
      this.list = id;
      this.showCompiles();
    }, 'compiles');
    const search = h('input', {
      type: 'search', placeholder: 'Filter by graph, key, tenant\u2026', 'aria-label': 'Filter compiles', autocomplete: 'off', spellcheck: 'false',
      oninput: (event) => {
        this.filter = event.target.value.trim().toLowerCase();
        this.showCompiles();
      },
    });
    return h('section', { class: 'card', 'aria-label': 'Compiles' },
      h('div', { class: 'card-head' }, h('h2', {}, 'Compiles'), choice.element, h('span', { class: 'grow' }), search),
      h('div', { class: 'table-wrap', id: 'compiles', role: 'tabpanel', 'aria-label': 'Compiles' }, this.compilesTable, this.compilesNote));
  }

  offline(error) {
    this.error.hidden = false;
    this.waiting.hidden = true;
    setText(this.error, this.activity
      ? `${error.message} What you see is from ${clock(number(this.activity.now_unix_us))}.`
      : `${error.message} This page asks again by itself.`);
  }

  update(activity) {
    this.activity = activity;
    this.error.hidden = true;
    this.waiting.hidden = true;
    this.body.hidden = false;
    const points = activity.history.map((p) => ({
      ...p, time: number(p.start_unix_us), hits: number(p.hits), misses: number(p.misses), compile_latency: p.compile_latency || { count: 0 },
    }));
    this.showTiles(activity, points);
    for (const chart of this.charts) chart.update(points);
    this.showRunning(activity);
    this.showCompiles();
    this.showTables(activity);
  }

  showTiles(a, points) {
    const [rate, hit, compile, jobs] = this.tiles;
    const hits = points.reduce((sum, p) => sum + p.hits, 0);
    const misses = points.reduce((sum, p) => sum + p.misses, 0);
    const lookups = hits + misses;
    figure(rate.value, lookups ? hitRate(hits, lookups) : '\u2013', lookups ? '%' : '');
    setText(rate.foot, `${plural(lookups, 'lookup')} in 5 min, ${plural(number(a.hits), 'hit')} since the start`);
    latencyTile(hit, a.hit_latency, 'hit');
    latencyTile(compile, a.compile_latency, 'compile');
    figure(jobs.value, String(a.jobs_running), `running, ${a.jobs_queued} queued`);
    const workers = a.workers_busy + a.workers_idle + a.workers_starting;
    setText(jobs.foot, `${a.workers_busy} of ${plural(workers, 'worker')} busy, ${plural(a.waiters, 'caller')} waiting`);
  }

  showRunning(a) {
    this.running.hidden = a.running.length === 0;
    setText(this.runningCount, plural(a.running.length, 'job'));
    sync(this.runningBody, a.running.slice(0, 50), (r) => r.number, () => row(6), (tr, r) => {
      const started = number(r.started_unix_us);
      const cells = tr.children;
      // The server keeps no graph for the page's own compiles: they lead nowhere.
      graphCell(cells[0], r, false);
      labelled(cells[1], 'Tenant', r.tenant);
      labelled(cells[2], 'Stage', started ? (r.stage || 'starting').replaceAll('_', ' ') : 'queued');
      labelled(cells[3], 'Kernels', r.kernels_done ? `${r.kernels_done} done` : '\u2013');
      labelled(cells[4], 'For', duration((number(a.now_unix_us) - (started || number(r.queued_unix_us))) / 1000));
      labelled(cells[5], 'Waiters', String(r.waiters));
    });
  }

  showCompiles() {
    const a = this.activity;
    if (!a) return;
    const all = a[this.list];
    const shown = this.filter ? all.filter((r) => matches(r, this.filter)) : all;
    this.compilesTable.hidden = shown.length === 0;
    this.compilesNote.hidden = shown.length > 0;
    if (shown.length === 0) {
      replace(this.compilesNote, all.length
        ? [h('strong', {}, 'No compile matches.'), `None of ${plural(all.length, 'compile')} has \u201c${this.filter}\u201d in its graph, key, tenant, target or outcome.`]
        : [h('strong', {}, 'Nothing has been compiled yet.'), 'Compiles appear here as clients ask for them.']);
    }
    const now = number(a.now_unix_us);
    sync(this.compilesBody, shown, (r) => r.number, () => row(8), (tr, r) => {
      const cells = tr.children;
      graphCell(cells[0], r, true);
      labelled(cells[1], 'Target', `${r.target} ${r.arch}`);
      labelled(cells[2], 'Tenant', r.tenant);
      labelled(cells[3], 'Finished', ago(number(r.finished_unix_us), now));
      cells[3].title = new Date(number(r.finished_unix_us) / 1000).toISOString();
      labelled(cells[4], 'Took', number(r.started_unix_us) ? duration((number(r.finished_unix_us) - number(r.started_unix_us)) / 1000) : '\u2013');
      labelled(cells[5], 'Kernels', r.kernels_total ? `${r.kernels_total}${r.kernels_cached ? `, ${r.kernels_cached} cached` : ''}` : '\u2013');
      labelled(cells[6], 'Waiters', String(r.waiters));
      cells[6].classList.add('minor');
      outcomeCell(cells[7], r);
    });
  }

  showTables(a) {
    sync(this.tenantBody, a.tenants, (t) => t.tenant, () => row(6, 1), (tr, t) => {
      [t.tenant, t.queued, t.running, count(t.compiles), count(t.hits), count(t.refused)].forEach((value, i) => setText(tr.children[i], String(value)));
    }, 'No tenant has asked for anything yet.');
    sync(this.cacheBody, a.caches, (c) => `${c.kind} ${c.tier}`, () => row(4, 2), (tr, c) => {
      [c.kind, c.tier, count(c.entries), bytes(c.size_bytes)].forEach((value, i) => setText(tr.children[i], value));
    }, 'No cache.');
  }
}

function figure(element, value, unit) {
  replace(element, value, unit ? h('span', { class: 'unit' }, unit) : null);
}

function latencyTile(tile, latency, what) {
  const n = number(latency.count);
  if (!n) {
    figure(tile.value, '\u2013', '');
    setText(tile.foot, `no ${what} in 5 min`);
    return;
  }
  figure(tile.value, ...durationParts(latency.p50_ms));
  setText(tile.foot, `median of ${count(n)}; p95 ${duration(latency.p95_ms)}, p99 ${duration(latency.p99_ms)}`);
}

export function matches(r, text) {
  return [r.graph, r.key, r.tenant, r.target, r.arch, r.outcome, r.source].some((field) => field.toLowerCase().includes(text));
}

function jobTable(caption, heads, body) {
  return h('table', { class: 'cards' }, h('caption', { class: 'sr-only' }, caption),
    h('thead', {}, h('tr', {}, heads.map((text) => h('th', { scope: 'col' }, text)))), body);
}

function plainTable(caption, heads, body) {
  const textColumns = heads[0] === 'Kind' ? 2 : 1;
  return h('table', {}, h('caption', { class: 'sr-only' }, caption),
    h('thead', {}, h('tr', {}, heads.map((text, i) => h('th', { scope: 'col', class: i >= textColumns ? 'r' : '' }, text)))), body);
}

// `text`: columns of text, the others are figures, to the right; all where it is left out.
function row(cells, text = cells) {
  return h('tr', {}, Array.from({ length: cells }, (_, i) => h('td', { class: i >= text ? 'r num' : '' })));
}

function labelled(cell, label, text) {
  cell.dataset.label = label;
  cell.classList.add('num');
  setText(cell, text);
}

function graphCell(cell, r, link) {
  const name = r.graph || 'unnamed graph';
  const sub = `${shortKey(r.key)} \u00b7 ${plural(r.graph_nodes, 'operator')}${r.warmup ? ' \u00b7 warm-up' : ''}`;
  if (cell.dataset.name === name && cell.dataset.sub === sub) return;
  cell.dataset.name = name;
  cell.dataset.sub = sub;
  cell.classList.add('wide');
  cell.parentElement.classList.toggle('go', link);
  replace(cell, link ? h('a', { class: 'name', href: `#/compiles/${r.key}` }, name) : h('span', { class: 'name' }, name),
    h('div', { class: 'sub mono' }, sub));
}

export function outcomeChip(r) {
  if (r.outcome === 'OK') return chip(r.source || 'done', r.source === 'compiled' ? 'good' : 'info');
  if (!r.outcome) return chip('running', 'info');
  return chip(r.outcome.split(':')[0].toLowerCase().replaceAll('_', ' '), r.outcome.startsWith('CANCELLED') ? 'warn' : 'bad');
}

function outcomeCell(cell, r) {
  if (cell.dataset.outcome === r.outcome) return;
  cell.dataset.outcome = r.outcome;
  cell.dataset.label = 'Outcome';
  cell.title = r.outcome === 'OK' ? '' : r.outcome;
  replace(cell, outcomeChip(r));
}

// Makes the rows of `body` those of `items`, in order, and leaves what stays in place: focus and
// selection outlive an update.
function sync(body, items, keyOf, make, update, empty) {
  const known = new Map([...body.children].map((tr) => [tr.dataset.key, tr]));
  let next = body.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let tr = known.get(key);
    known.delete(key);
    if (!tr) {
      tr = make();
      tr.dataset.key = key;
    }
    if (tr === next) next = next.nextElementSibling;
    else body.insertBefore(tr, next);
    update(tr, item);
  }
  for (const tr of known.values()) tr.remove();
  if (items.length === 0 && empty) body.append(h('tr', { 'data-key': ' empty' }, h('td', { colspan: 9, class: 'muted' }, empty)));
}
