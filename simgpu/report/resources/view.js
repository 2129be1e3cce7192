// The stretch of time that is seen: how it moves and how far it may go.
// Lives here: arithmetic on times alone. Does not live here: pixels beyond their number, or what is drawn.

class View {
  /** `changed` is called after every move. */
  constructor(changed) {
    this.changed = changed;
    this.scope = [0, 1];
    this.start = 0;
    this.end = 1;
  }

  get length() { return this.end - this.start; }

  /** The stretch within which one may move, an iteration or the whole run; all of it is seen at first. */
  setScope(start, end) {
    this.scope = [start, end];
    this.show(start, end);
  }

  get fits() { return this.start <= this.scope[0] && this.end >= this.scope[1]; }

  fit() { this.show(...this.scope); }

  /** Sees this stretch, as far as the scope goes; never less than 10 ns. */
  show(start, end) {
    const [first, last] = this.scope;
    const length = Math.min(last - first, Math.max(end - start, Math.min(10, last - first)));
    this.start = Math.min(Math.max(first, start), last - length);
    this.end = this.start + length;
    this.changed();
  }

  /** Makes the stretch so many times as long; what stands at `time` stays where it is. */
  zoom(factor, time) {
    const length = Math.min(this.length * factor, this.scope[1] - this.scope[0]);
    const start = time - (time - this.start) * (length / this.length);
    this.show(start, start + length);
  }

  /** Moves by a share of what is seen. */
  move(share) { this.show(this.start + share * this.length, this.end + share * this.length); }

  /** Brings a span before the eyes: in the middle, wide enough to be seen, and no wider than half of the picture. */
  reveal(start, end) {
    const length = Math.max(2 * (end - start), Math.min(this.length, 24 * Math.max(end - start, 1)));
    const middle = (start + end) / 2;
    this.show(middle - length / 2, middle + length / 2);
  }
}
