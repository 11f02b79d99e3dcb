"""Waiting for requests: all at once, or as an iterator of what is new."""

from collections.abc import Iterator, Sequence

from .engine import Engine
from .request import Request, RequestOutput


def run_all(engine: Engine, requests: Sequence[Request]) -> list[RequestOutput]:
    """Submit requests and drive the engine until they are finished; outputs in the same order.

    Whatever interrupts it (KeyboardInterrupt, a failed request) cancels those that are left.
    """
    try:
        for request in requests:
            engine.submit(request)
        for request in requests:
            while not request.finished:
                _drive(engine, request)
            _raise_error(request)
    finally:
        for request in requests:
            if not request.finished:
                engine.cancel(request)
    return [request.output() for request in requests]


class RequestStream(Iterator[RequestOutput]):
    """Outputs as they come: one item a token, with the whole text so far and what is new (`delta`).

    The last item of a request has `finished` set and is complete. Several requests come one after
    another, in order. Closing (or leaving a `with` block, or losing the last reference) cancels
    what is left; an interrupt inside does, too.
    """

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine = engine
        self._requests = list(requests)
        self._next = 0  # index of the request whose items come
        self._seen = 0  # its tokens given out
        self._shown = 0  # its characters given out
        self._submitted = False

    def __iter__(self) -> "RequestStream":
        """The stream is its own iterator."""
        return self

    def __next__(self) -> RequestOutput:
        """Drive the engine until there is something new."""
        if self._next >= len(self._requests):
            raise StopIteration
        request = self._requests[self._next]
        try:
            if not self._submitted:
                self._submitted = True
                for each in self._requests:
                    self._engine.submit(each)
            while not request.finished and request.num_new_tokens == self._seen:
                _drive(self._engine, request)
            _raise_error(request)
            with self._engine.lock:
                output = request.output(self._shown)
        except BaseException:
            self.close()
            raise
        self._seen = request.num_new_tokens
        self._shown = len(output.outputs[0].text)
        if output.finished:
            self._next, self._seen, self._shown = self._next + 1, 0, 0
        return output

    def close(self) -> None:
        """Cancel what is not finished and free its pages; from any thread, at any time."""
        self._next = len(self._requests)
        for request in self._requests:
            if not request.finished:
                self._engine.cancel(request)

    def __enter__(self) -> "RequestStream":
        """For `with llm.generate(..., stream=True) as stream`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what is left."""
        self.close()

    def __del__(self) -> None:
        """Only mark: this may run in the middle of a step; the next step frees the pages."""
        for request in self._requests:
            request.cancelled = True


def _drive(engine: Engine, request: Request) -> None:
    if not engine.step() and not request.finished:
        request.finish("abort")  # lost by an interrupt between queue and engine


def _raise_error(request: Request) -> None:
    if request.error is not None:
        raise request.error
