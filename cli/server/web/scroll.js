// Follows the end of an answer, unless the reader has scrolled up to read.

const NEAR = 40; // px from the end that still count as the end

export class Follower {
  /**
   * @param {HTMLElement} scroller
   * @param {HTMLButtonElement} button takes the reader back to the end
   */
  constructor(scroller, button) {
    this.scroller = scroller;
    this.button = button;
    this.following = true;
    this.lastTop = 0;
    scroller.addEventListener("scroll", () => this.onScroll(), { passive: true });
    // A wheel or a finger upwards means it at once, before the next piece pulls back down.
    scroller.addEventListener(
      "wheel",
      (event) => event.deltaY < 0 && this.scrollable && this.let(false),
      { passive: true },
    );
    button.addEventListener("click", () => this.toEnd());
    // A rotated phone or its keyboard keeps the end in sight; a block that is opened does not.
    this.observer = new ResizeObserver(() => this.settle());
    this.observer.observe(scroller);
  }

  get distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  get scrollable() {
    return this.scroller.scrollHeight > this.scroller.clientHeight + NEAR;
  }

  let(following) {
    this.following = following;
    this.button.hidden = following || !this.scrollable;
  }

  onScroll() {
    const { scrollTop } = this.scroller;
    const up = scrollTop < this.lastTop - 1;
    this.lastTop = scrollTop;
    if (this.distance <= NEAR && !(up && this.distance > 2)) this.let(true);
    else if (up) this.let(false);
    else this.button.hidden = this.following;
  }

  /** Called when the content has grown. */
  settle() {
    if (this.following) {
      this.scroller.scrollTop = this.scroller.scrollHeight;
      this.lastTop = this.scroller.scrollTop;
    }
    this.button.hidden = this.following || this.distance <= NEAR;
  }

  toEnd() {
    this.let(true);
    this.settle();
  }
}
