// One compile: facts, timeline, and its inside in tabs. The inside is made when somebody looks.
import { h, replace, number, count, plural, duration, bytes, ago, shortKey, card, tabs, loading, getJson, postJson, getText, setText } from './dom.js';
import { outcomeChip } from './overview.js';
import { FusionView } from './fusion.js';
import { launchTable, drawingOf } from './launches.js';
import { parseModule, kernelText, ownStart, readAssembly, renderCode } from './ir.js';

const kTabs = [
  { id: 'fusion', label: 'Fusion' }, { id: 'kernels', label: 'Kernels' }, { id: 'ir', label: 'IR' }, { id: 'decisions', label: 'Decisions' },
];
const kLaunchTabs = [...kTabs, { id: 'launches', label: 'Launches' }]; // of targets that predict times
const kPollMs = 400;
const kMaxLines = 3000;

export class CompileView {
  constructor(route) {
    this.key = route.parts[1];
    this.base = `/api/v1/compiles/${this.key}`;
    this.title = shortKey(this.key);
    this.stop = new AbortController();
    this.texts = new Map();
    this.readRoute(route);
    this.head = h('div', {}, loading('Reading the compile'));
    this.timelineBody = h('div', { class: 'card-body' });
    this.timeline = card('Timeline', null, this.timelineBody);
    this.timeline.hidden = true;
    this.panel = h('div', { id: 'inside', role: 'tabpanel', 'aria-label': 'Inside' }, loading('Asking for the inside'));
    this.tabs = this.tabsOf(kTabs);
    this.inside = h('section', { class: 'card', 'aria-label': 'Inside' },
      h('div', { class: 'card-head' }, h('h2', {}, 'Inside'), this.tabs.element), this.panel);
    this.inside.hidden = true;
    this.element = h('div', {}, h('nav', { class: 'crumb', 'aria-label': 'Breadcrumb' }, h('a', { href: '#/' }, '\u2190 All compiles')), this.head, this.timeline, this.inside);
    this.element.style.display = 'contents';
    this.load();
  }

  tabsOf(items) {
    return tabs('Parts of the compile', items, this.tab, (id) => {
      location.hash = `#/compiles/${this.key}/${id}`;
    }, 'inside');
  }

  readRoute(route) {
    const tab = route.parts[2];
    this.tab = kLaunchTabs.some((t) => t.id === tab) ? tab : 'fusion';
    this.deep = !!tab;
    this.part = route.parts[3] || '';
    this.step = route.query.has('step') ? Number(route.query.get('step')) : -1;
  }

  // Another part of the same compile is shown in place.
  accepts(route) {
    if (route.parts[0] !== 'compiles' || route.parts[1] !== this.key) return false;
    const before = `${this.tab} ${this.part}`;
    this.readRoute(route);
    if (`${this.tab} ${this.part}` !== before) {
      this.tabs.select(this.tab, false);
      this.showTab();
    } else if (this.fusion) {
      this.fusion.selectStep(this.step);
    }
    return true;
  }

  close() {
    this.stop.abort();
  }

  async load() {
    try {
      this.record = await getJson(this.base, this.stop.signal);
    } catch (error) {
      if (this.stop.signal.aborted) return;
      replace(this.head, error.code === 404
        ? h('div', { class: 'card empty' }, h('strong', {}, 'The server does not remember this compile.'), 'It keeps the last ones only, and none over a restart.')
        : this.problem(error.message, () => this.load()));
      return;
    }
    this.title = this.record.graph || 'unnamed graph';
    document.title = `${this.title} \u00b7 Kiln`;
    this.showHead();
    this.showTimeline();
    if (!number(this.record.finished_unix_us)) {
      setTimeout(() => this.stop.signal.aborted || this.load(), 1000);
      return;
    }
    this.inside.hidden = false;
    if (this.record.outcome === 'OK') this.askDetails(true);
    else this.showNoInside();
  }

  showNoInside() {
    replace(this.panel, h('div', { class: 'empty' }, h('strong', {}, 'A compile that failed has no inside to show.'), this.record.outcome));
    this.tabs.element.hidden = true;
  }

  problem(text, retry) {
    return h('div', { class: 'card-body' }, h('div', { class: 'notice', role: 'alert' }, text), h('p', {},
      h('button', { class: 'button', type: 'button', onclick: retry }, 'Try again')));
  }

  showHead() {
    const r = this.record;
    const now = Date.now() * 1000;
    const fact = (name, value, mono) => h('div', { class: mono ? 'whole' : '' }, h('dt', {}, name), h('dd', { class: mono ? 'mono' : '' }, value));
    const started = number(r.started_unix_us);
    const finished = number(r.finished_unix_us);
    replace(this.head, h('div', { class: 'card' },
      h('div', { class: 'card-head title-row' }, h('h1', {}, r.graph || 'unnamed graph'), outcomeChip(r)),
      r.outcome && r.outcome !== 'OK' ? h('div', { class: 'card-body' }, h('div', { class: 'notice' }, r.outcome)) : null,
      h('div', { class: 'card-body' }, h('dl', { class: 'facts' },
        fact('Took', finished && started ? duration((finished - started) / 1000) : '\u2013'),
        fact('Waited in the queue', started ? duration((started - number(r.queued_unix_us)) / 1000) : '\u2013'),
        fact('Finished', finished ? ago(finished, now) : 'not yet'),
        fact('Target', `${r.target} ${r.arch}`),
        fact('Operators', count(r.graph_nodes)),
        fact('Kernels', `${r.kernels_total}, ${r.kernels_cached} from the cache`),
        fact('Tenant', r.warmup ? `${r.tenant} (warm-up)` : r.tenant),
        fact('Callers', String(r.waiters)),
        r.trace_id ? fact('Trace', r.trace_id, true) : null,
        fact('Key', r.key, true)))));
  }

  // Stages one under the other on one scale; what ran inside plan and compile is set in.
  showTimeline() {
    const r = this.record;
    if (!r.stages.length) return;
    const wait = Math.max(number(r.started_unix_us) - number(r.queued_unix_us), 0);
    const spans = r.stages.map((s) => ({ ...s, start: number(s.start_us) + wait, length: number(s.duration_us) }));
    const top = spans.filter((s) => !s.kernel && isTop(s.stage));
    const total = Math.max(...spans.map((s) => s.start + s.length), wait, 1);
    const rows = [];
    const add = (name, start, length, kind, nested) => rows.push(
      h('span', { class: `tl-name ${nested ? 'nested' : ''}`, title: name }, name), track(start / total, length / total, kind),
      h('span', { class: 'num muted' }, duration(length / 1000)));
    if (wait > 0) add('queued', 0, wait, 'wait');
    for (const stage of top) {
      add(stage.stage.replaceAll('_', ' '), stage.start, stage.length, stage.stage === 'link' ? 'link-stage' : '');
      if (stage.stage === 'plan') for (const s of spans.filter((x) => !x.kernel && !isTop(x.stage))) add(s.stage.replaceAll('_', ' '), s.start, s.length, 'sub-span', true);
      if (stage.stage === 'compile') for (const s of spans.filter((x) => x.kernel).sort((a, b) => a.start - b.start).slice(0, 40)) add(s.operators || s.kernel, s.start, s.length, 'kernel', true);
    }
    const kernels = spans.filter((s) => s.kernel).length;
    replace(this.timelineBody, h('div', { class: 'timeline' }, rows),
      kernels > 40 ? h('p', { class: 'muted small' }, `and ${kernels - 40} kernels more`) : null);
    this.timeline.hidden = false;
  }

  async askDetails(start) {
    let state;
    try {
      state = await (start ? postJson : getJson)(`${this.base}/details`, this.stop.signal);
    } catch (error) {
      if (!this.stop.signal.aborted) replace(this.panel, this.problem(error.message, () => this.askDetails(true)));
      return;
    }
    if (state.state === 'ready') return this.ready(state.detail);
    if (state.state === 'failed') return replace(this.panel, this.problem(state.error, () => this.askDetails(true)));
    if (state.state === 'gone') {
      return replace(this.panel, h('div', { class: 'empty' }, h('strong', {}, 'The server does not keep this graph any more.'), 'It keeps the last 32 MiB of graphs. Compile it again to look inside.'));
    }
    const kernels = state.kernels_total ? `, ${state.kernels_done} of ${plural(state.kernels_total, 'kernel')}` : '';
    if (!this.waiting) replace(this.panel, this.waiting = loading(''));
    setText(this.waiting.lastChild, `Compiling once more to look inside: ${state.stage.replaceAll('_', ' ')}${kernels}`);
    setTimeout(() => this.stop.signal.aborted || this.askDetails(false), kPollMs);
  }

  async text(path) {
    if (!this.texts.has(path)) this.texts.set(path, getText(`${this.base}/${path}`, this.stop.signal));
    try {
      return await this.texts.get(path);
    } catch (error) {
      this.texts.delete(path);
      throw error;
    }
  }

  async irOf(stage) {
    const index = this.detail.ir.findIndex((ir) => ir.stage === stage);
    return index < 0 ? '' : this.text(`ir/${index}`);
  }

  async ready(detail) {
    this.detail = detail;
    if (detail.kernels.some((kernel) => kernel.plans.length)) {
      const all = this.tabsOf(kLaunchTabs);
      this.tabs.element.replaceWith(all.element);
      this.tabs = all;
    }
    try {
      this.fusedText = await this.irOf('fuse');
      this.fused = parseModule(this.fusedText);
      this.lowered = parseModule(await this.irOf('lower'));
      this.showTab();
    } catch (error) {
      if (!this.stop.signal.aborted) replace(this.panel, this.problem(error.message, () => this.ready(detail)));
    }
  }

  async showTab() {
    if (!this.detail) return;
    const show = { fusion: this.showFusion, kernels: this.showKernels, ir: this.showIr, decisions: this.showDecisions, launches: this.showLaunches }[this.tab];
    const wanted = `${this.tab} ${this.part}`;
    try {
      const content = await show.call(this);
      if (wanted !== `${this.tab} ${this.part}`) return;
      replace(this.panel, content);
      if (this.tab === 'fusion') this.fusion.shown();
      const target = this.panel.querySelector('.hit, [data-scroll]');
      if (target) scrollInside(target);
      // Who came for one part need not look for it below the timeline.
      if (this.deep && this.inside.getBoundingClientRect().top > window.innerHeight / 2) this.inside.scrollIntoView();
    } catch (error) {
      if (!this.stop.signal.aborted) replace(this.panel, this.problem(error.message, () => this.showTab()));
    }
  }

  link(text, ...parts) {
    return h('a', { class: 'button', href: `#/compiles/${this.key}/${parts.join('/')}` }, text);
  }

  showFusion() {
    if (!this.fusion) {
      this.fusion = new FusionView(this.detail, this.fused, this.lowered, (node) => [
        node.kernel >= 0 ? this.link('Source and assembly', 'kernels', node.kernel) : null,
        node.item ? this.link('IR', 'ir', `fuse:${node.item.line + 1}`) : null,
      ], (step) => history.replaceState(null, '', `#/compiles/${this.key}/fusion?step=${step}`));
    }
    this.fusion.selectStep(this.step);
    return this.fusion.element;
  }

  async showKernels() {
    const kernels = this.detail.kernels;
    if (!kernels.length) return h('div', { class: 'empty' }, h('strong', {}, 'This program has no kernels.'), 'Every step is left to the library, or moves data only.');
    const index = Math.min(Math.max(Number(this.part) || 0, 0), kernels.length - 1);
    const kernel = kernels[index];
    const [source, assembly, machineCode] = await Promise.all([this.text(`kernels/${index}/source`), this.text(`kernels/${index}/assembly`),
      kernel.machine_code_bytes ? this.text(`kernels/${index}/machine_code`) : '']);
    const select = h('select', {
      'aria-label': 'Kernel', onchange: (event) => {
        location.hash = `#/compiles/${this.key}/kernels/${event.target.value}`;
      },
    }, kernels.map((k, i) => h('option', { value: i, selected: i === index }, `${i + 1}. ${k.ops.join(', ').slice(0, 70) || k.symbol}`)));
    const steps = this.detail.steps.map((step, i) => ({ step, i })).filter(({ step }) => step.kernel === kernel.symbol).map(({ i }) => i);
    const items = this.detail.steps.filter((step) => step.kind !== 'copy').map((step, i) => [step, this.fused[i]]);
    const item = (items.find(([step]) => step.kernel === kernel.symbol) || [])[1];
    return [
      h('div', { class: 'card-head' }, select,
        h('span', { class: 'small muted' }, `${kernel.cached ? 'from the kernel cache' : `compiled in ${duration(kernel.compile_ms)}`}, launched ${plural(steps.length, 'time')}`)),
      h('div', { class: 'card-body' },
        h('h3', {}, 'Operators'),
        h('ul', { class: 'ops' }, kernel.ops.map((name) => h('li', { class: 'op-chip' }, name))),
        kernel.schedule.length ? [h('h3', {}, 'How it runs'), h('ul', { class: 'ops choices' }, kernel.schedule.map((choice) => h('li', { class: 'small mono' }, choice)))] : null,
        h('p', { class: 'links' }, steps.slice(0, 8).map((step) => h('a', { class: 'button', href: `#/compiles/${this.key}/fusion?step=${step}` }, `Step ${step}`)),
          steps.length > 8 ? h('span', { class: 'muted small' }, `and ${steps.length - 8} more`) : null),
        h('div', { class: 'small muted mono' }, kernel.symbol),
        kernel.resources ? h('p', { class: 'small', id: 'resources' }, kernel.resources) : null),
      item ? [
        h('div', { class: 'pane-head' }, 'IR after fusion', h('span', { class: 'grow' }), h('a', { href: `#/compiles/${this.key}/ir/fuse:${item.line + 1}` }, 'in its place')),
        renderCode(kernelText(this.fusedText, item), 'ir', 'IR of the kernel'),
      ] : null,
      this.codePanes(kernel, source, assembly),
      machineCode ? [h('div', { class: 'pane-head' }, 'Machine code'), h('div', { id: 'machine-code' }, renderCode(machineCode, 'asm', 'Machine code'))] : null,
    ];
  }

  // Source and assembly side by side: the kernel's entry point in the one leads to the other, and a
  // line of the one to what it became, or came from, in the other.
  codePanes(kernel, source, assembly) {
    const start = ownStart(source);
    const own = source.split('\n').slice(start).join('\n');
    const code = readAssembly(assembly);
    const sourceBox = h('div', {});
    const assemblyBox = h('div', {});
    let first = start + 1; // number of the source's first line that is shown
    const jump = (box) => (event) => {
      event.preventDefault();
      const target = box.querySelector('.entry');
      if (target) scrollInside(target.closest('.l'));
    };
    const marked = (box, test) => (line) => {
      if (!test(line)) return null;
      const at = line.indexOf(kernel.symbol);
      return [line.slice(0, at), h('a', { href: '#', class: 'entry', title: 'Go to the other side', onclick: jump(box) }, kernel.symbol), line.slice(at + kernel.symbol.length)];
    };
    const became = new Set(code.sourceLines);
    const drawSource = (all) => {
      first = all ? 1 : start + 1;
      replace(sourceBox, renderCode(all ? source : own, 'cpp', 'Generated source', marked(assemblyBox, (line) => line.includes(`${kernel.symbol}(`)), first));
      [...sourceBox.firstChild.children].forEach((line, i) => line.classList.toggle('linked', became.has(first + i)));
    };
    drawSource(false);
    replace(assemblyBox, assembly ? renderCode(code.text, 'asm', 'Assembly', marked(sourceBox, (line) => line.startsWith(`${kernel.symbol}:`)))
      : h('div', { class: 'empty' }, 'This kernel came without its assembly.'));
    const assemblyLines = assembly ? [...assemblyBox.firstChild.children] : [];
    assemblyLines.forEach((line, i) => line.classList.toggle('linked', code.sourceLines[i] > 0));
    const prelude = start > 0 ? h('button', {
      class: 'button', type: 'button', 'aria-pressed': 'false', onclick: (event) => {
        const on = event.target.getAttribute('aria-pressed') !== 'true';
        event.target.setAttribute('aria-pressed', on);
        drawSource(on);
      },
    }, `Prelude, ${count(start)} lines`) : null;
    const choose = (number, scrolled) => {
      if (number < first && prelude) prelude.click();
      const sourceLine = sourceBox.firstChild.children[number - first];
      for (const line of sourceBox.querySelectorAll('.hit')) line.classList.remove('hit');
      if (sourceLine) sourceLine.classList.add('hit');
      assemblyLines.forEach((line, i) => line.classList.toggle('hit', code.sourceLines[i] === number));
      const target = scrolled === sourceBox ? sourceLine : assemblyBox.querySelector('.hit');
      if (target) scrollInside(target);
    };
    const lineAt = (event) => event.target.closest('a') ? null : event.target.closest('.l.linked');
    sourceBox.addEventListener('click', (event) => {
      const line = lineAt(event);
      if (line) choose(first + [...line.parentNode.children].indexOf(line), assemblyBox);
    });
    assemblyBox.addEventListener('click', (event) => {
      const line = lineAt(event);
      if (line) choose(code.sourceLines[assemblyLines.indexOf(line)], sourceBox);
    });
    return h('div', { class: 'panes' },
      h('div', { class: 'pane' }, h('div', { class: 'pane-head' }, 'Source', h('span', { class: 'grow' }), prelude), sourceBox),
      h('div', { class: 'pane' }, h('div', { class: 'pane-head' }, 'Assembly', h('span', { class: 'muted small' },
        assembly ? `${plural(assemblyLines.length, 'line')}; a line chosen here or there shows its other side` : '')), assemblyBox));
  }

  // "fuse" or "fuse:120", with a line to show.
  async showIr() {
    if (!this.detail.ir.length) return h('div', { class: 'empty' }, 'This compile kept no IR.');
    const [wanted, lineText] = this.part.split(':');
    const stage = this.detail.ir.some((ir) => ir.stage === wanted) ? wanted : this.detail.ir.at(-1).stage;
    const line = Number(lineText) || 0;
    const text = await this.irOf(stage);
    const lines = text.split('\n');
    const from = line > 0 ? Math.max(Math.min(line - 200, lines.length - kMaxLines), 0) : 0;
    const stages = tabs('Stage', this.detail.ir.map((ir) => ({ id: ir.stage, label: `after ${ir.stage}` })), stage, (id) => {
      location.hash = `#/compiles/${this.key}/ir/${id}`;
    }, 'ir-text');
    const kernelOf = new Map();
    if (stage === 'fuse') {
      const steps = this.detail.steps.map((step, i) => ({ step, i })).filter(({ step }) => step.kind !== 'copy');
      if (steps.length === this.fused.length) this.fused.forEach((item, i) => kernelOf.set(item.line, steps[i].i));
    }
    const mark = (textLine, i) => {
      const step = kernelOf.get(i + from);
      if (step === undefined) return null;
      return [h('span', { class: 'k' }, textLine), '  ', h('a', { href: `#/compiles/${this.key}/fusion?step=${step}` }, `step ${step}`)];
    };
    const drawing = stage === 'picture' ? drawingOf(text) : null;
    const code = drawing || renderCode(lines.slice(from, from + kMaxLines).join('\n'), 'ir', `IR after ${stage}`, mark, from + 1);
    if (!drawing && line > 0 && code.children[line - 1 - from]) code.children[line - 1 - from].classList.add('hit');
    return [
      h('div', { class: 'card-head' }, stages.element, h('span', { class: 'grow' }),
        h('span', { class: 'small muted' }, `${count(lines.length)} lines, ${bytes(text.length)}`),
        h('a', { class: 'button', href: `${this.base}/ir/${this.detail.ir.findIndex((ir) => ir.stage === stage)}`, target: '_blank', rel: 'noopener' }, 'Plain text')),
      h('div', { id: 'ir-text' }, code),
      !drawing && lines.length > kMaxLines ? h('div', { class: 'pager small muted' }, `Lines ${from + 1} to ${Math.min(from + kMaxLines, lines.length)} of ${lines.length}; the plain text has all of them.`) : null,
    ];
  }

  async showLaunches() {
    if (!this.detail.kernels.some((kernel) => kernel.plans.length)) return h('div', { class: 'empty' }, 'This target\u2019s compiler predicts no times.');
    const picture = drawingOf(await this.irOf('picture'));
    return [launchTable(this.detail, (text, kernel) => h('a', { class: 'mono', href: `#/compiles/${this.key}/kernels/${kernel}` }, text)),
      picture ? [h('div', { class: 'pane-head' }, 'L2 over time, and what computes and copies'), picture] : null];
  }

  showDecisions() {
    const decisions = this.detail.decisions;
    if (!decisions.length) return h('div', { class: 'empty' }, h('strong', {}, 'No decision was needed.'), 'No two operators could have been fused.');
    const body = h('tbody', {});
    const note = h('div', { class: 'empty', hidden: true }, 'No decision matches.');
    const draw = (filter) => {
      const shown = decisions.filter((d) => !filter || [d.producer, d.consumer, d.reason, d.fused ? 'fused' : 'apart'].some((x) => x.toLowerCase().includes(filter))).slice(0, 1000);
      note.hidden = shown.length > 0;
      replace(body, shown.map((d) => h('tr', {},
        h('td', { class: 'wide' }, h('span', { class: 'mono' }, `${d.producer.replace(/^k_/, '')} \u2192 ${d.consumer.replace(/^k_/, '')}`)),
        h('td', {}, h('span', { class: `chip ${d.fused ? 'good' : ''}` }, d.fused ? 'fused' : 'apart')), h('td', { class: 'wide' }, d.reason))));
    };
    draw('');
    const fused = decisions.filter((d) => d.fused).length;
    return [
      h('div', { class: 'card-head' }, h('span', { class: 'small muted' }, `${fused} fused, ${decisions.length - fused} kept apart`), h('span', { class: 'grow' }),
        h('input', { type: 'search', placeholder: 'Filter by operator or reason\u2026', 'aria-label': 'Filter decisions', oninput: (event) => draw(event.target.value.trim().toLowerCase()) })),
      h('div', { class: 'table-wrap' }, h('table', { class: 'cards' }, h('caption', { class: 'sr-only' }, 'Fusion decisions'),
        h('thead', {}, h('tr', {}, ['Operators', 'Decision', 'Reason'].map((x) => h('th', { scope: 'col' }, x)))), body), note),
    ];
  }
}

const isTop = (stage) => ['plan', 'kernel_lookup', 'compile', 'link', 'store'].includes(stage);

function track(start, length, kind) {
  const span = h('span', { class: `span ${kind}` });
  span.style.left = `${Math.min(start * 100, 99.6)}%`;
  span.style.width = `${Math.min(length, 1 - start) * 100}%`;
  return h('span', { class: 'track', 'aria-hidden': 'true' }, span);
}

// Scrolls the box that `target` is in, and nothing around it.
function scrollInside(target) {
  const box = target.closest('.code');
  if (box) box.scrollTop += target.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 3;
}
