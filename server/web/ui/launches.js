// The launches of a device whose times the compiler predicts: how each is planned, and what a run
// took that a client reported. Below it what lies in the memory on the chip, and what computes and
// copies meanwhile.
import { h, svg, number, plural } from './dom.js';

const kMiB = 1 << 20;
const micros = (us) => (us || 0).toFixed(1);
const mib = (bytes) => (number(bytes) / kMiB).toFixed(2);

// The table; `link` makes one to a kernel's source by its number.
export function launchTable(detail, link) {
  const ran = detail.device_times;
  const times = new Map((ran ? ran.launches : []).map((time) => [time.kernel, time]));
  const launches = (kernel) => detail.steps.filter((step) => step.kernel === kernel.symbol && !step.prepares).length;
  const sums = { predicted: 0, unfused: 0, simulated: 0, off: 0, timed: 0, launches: 0 };
  const rows = detail.kernels.flatMap((kernel, i) => launches(kernel) === 0 ? [] : kernel.plans.map((plan, version) => {
    const time = plan.typical ? times.get(kernel.symbol) : undefined;
    const error = time ? (plan.predicted_us - time.mean_us) / time.mean_us * 100 : 0;
    if (plan.typical) {
      const n = launches(kernel);
      sums.launches += n;
      sums.predicted += n * plan.predicted_us;
      sums.unfused += n * plan.unfused_us;
      if (time) {
        sums.simulated += n * time.mean_us;
        sums.off += n * Math.abs(error);
        sums.timed += n;
      }
    }
    return h('tr', {},
      h('td', { class: 'wide' }, version ? '' : [link(kernel.symbol.slice(0, 13), i), ' ', h('span', { class: 'muted small' }, plural(launches(kernel), 'launch', 'launches')), h('div', { class: 'small operators' }, kernel.ops.join(', '))]),
      cell('Strategy', strategyOf(plan)),
      cell('Split', plan.tile && number(plan.tile) ? `${plan.tiles} tiles of ${plan.tile} in dimension ${plan.split_dimension || 0} of ${plan.split_buffer}` : '\u2013'),
      cell('Kernels', plan.kernels, true),
      cell('L2 peak, MiB', `${mib(plan.l2_peak_bytes)} of ${number(plan.l2_bytes) / kMiB}`, true),
      cell('Predicted, \u00b5s', micros(plan.predicted_us), true),
      cell('Unfused, \u00b5s', micros(plan.unfused_us), true),
      cell('Simulated, \u00b5s', time ? micros(time.mean_us) : '\u2013', true),
      cell('Error, %', time ? signed(error) : '\u2013', true));
  }));
  const all = sums.timed === sums.launches && sums.timed > 0;
  const total = `${plural(sums.launches, 'launch', 'launches')}: predicted ${micros(sums.predicted)} \u00b5s, unfused ${micros(sums.unfused)} \u00b5s`
    + (all ? `, simulated ${micros(sums.simulated)} \u00b5s; mean error of a launch ${(sums.off / sums.timed).toFixed(1)} %` : '');
  return [
    h('div', { class: 'card-head' }, h('span', { class: 'small', id: 'launch-sums' }, total), h('span', { class: 'grow' }),
      h('span', { class: 'small muted' }, ran ? `as a client's run on ${ran.device} was reported` : 'no run at these sizes was reported')),
    h('div', { class: 'table-wrap' }, h('table', { class: 'cards', id: 'launches' }, h('caption', { class: 'sr-only' }, 'Launches, as planned and as simulated'),
      h('thead', {}, h('tr', {}, ['Operators', 'Strategy', 'Split', 'Kernels', 'L2 peak, MiB', 'Predicted, \u00b5s', 'Unfused, \u00b5s', 'Simulated, \u00b5s', 'Error, %']
        .map((x, i) => h('th', { scope: 'col', class: i > 2 ? 'num' : null }, x)))), h('tbody', {}, rows))),
  ];
}

function cell(label, content, isNumber) {
  return h('td', { 'data-label': label, class: isNumber ? 'num' : null }, content);
}

const strategyOf = (plan) => plan.sizes ? `DAFE: ${plan.strategy} for ${plan.sizes}` : plan.strategy;
const signed = (x) => (x > 0 ? '+' : '') + x.toFixed(1);

const kShapes = { svg: ['width', 'height', 'font-family', 'font-size'], g: ['transform'], title: [],
  rect: ['x', 'y', 'width', 'height', 'fill', 'stroke', 'stroke-width'], text: ['x', 'y', 'text-anchor', 'fill'] };

// A picture that the compiler drew: its shapes anew, and nothing else of it. Null where it is none.
export function drawingOf(text) {
  const copy = (from) => svg(from.localName, Object.fromEntries(kShapes[from.localName].map((name) => [name, from.getAttribute(name)])),
    [...from.childNodes].map((child) => child.nodeType === Node.TEXT_NODE ? child.textContent : child.localName in kShapes ? copy(child) : null));
  const root = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
  if (root.localName !== 'svg') return null;
  const picture = copy(root);
  picture.setAttribute('role', 'img');
  picture.setAttribute('aria-label', 'Memory on the chip, and what computes and copies, over time');
  return h('div', { class: 'drawing', tabindex: 0 }, picture);
}
