"""The one error tree. Edges translate by type: the terminal to one line and `exit_code`.

LlambaError
├── ModelError               something about a model file or name
│   ├── ModelNotFoundError     no such path, name or repository
│   ├── InvalidModelFileError  the bytes are not a sound GGUF file
│   ├── UnsupportedModelError  sound, but its architecture, format or tokenizer is not run
│   ├── UnsupportedTaskError   it runs, but was not made for what is asked of it
│   └── DownloadError          a pull failed: network, checksum, disk
├── RequestError             something about what was asked
│   ├── InvalidParameterError  a sampling or engine parameter out of its range
│   ├── ContextLengthError     more tokens than the context holds
│   ├── ConstraintError        a schema or grammar that can't be enforced on the answer
│   └── ChatTemplateError      the template is invalid or refused these messages
├── PrefixFileError          a saved prefix cache is unusable, or could not be written
├── OutputError              a file could not be written: it exists, no room, no right to
└── ResourceError            the machine does not have what is needed (memory, threads, device)
    ├── OverloadedError        too many requests wait already, or the server is about to stop
    ├── KernelError            a kernel could not be compiled or loaded for this CPU
    └── DeviceError            there is no GPU that can be used, or it failed
        └── DeviceLostError      it failed, and nothing runs on it before the process starts again
"""


class LlambaError(Exception):
    """Base of the errors raised on purpose; a message says what, which value, what to do."""

    exit_code = 1

    def __str__(self) -> str:
        """Never empty: an error without a message shows at least its class (PAINS P16)."""
        return super().__str__() or type(self).__name__


class ModelError(LlambaError):
    """Something about a model file or a model's name."""


class ModelNotFoundError(ModelError):
    """No such path, catalogue name or repository."""

    exit_code = 3


class InvalidModelFileError(ModelError):
    """The bytes are not a sound GGUF file."""

    exit_code = 4


class UnsupportedModelError(ModelError):
    """A sound file of a kind that is not run: architecture, tensor format or tokenizer."""

    exit_code = 5


class UnsupportedTaskError(ModelError):
    """A model that runs, but was not made for what is asked: an encoder can't answer."""

    exit_code = 5


class DownloadError(ModelError):
    """A pull failed: network, checksum or disk."""

    exit_code = 6


class RequestError(LlambaError):
    """Something about what was asked."""

    exit_code = 2


class InvalidParameterError(RequestError):
    """A sampling or engine parameter is out of its range."""


class ContextLengthError(RequestError):
    """The prompt and what is to be generated need more tokens than the context holds."""


class ConstraintError(RequestError):
    """A schema or grammar is invalid, or of a kind that can't be enforced: never ignored."""


class ChatTemplateError(RequestError):
    """The chat template is invalid, too expensive, or refused these messages."""


class PrefixFileError(LlambaError):
    """A file with a saved prefix cache can't be used (damaged, of another model) or written."""

    exit_code = 8


class OutputError(LlambaError):
    """A file could not be written; nothing was left under its name, or what was there is intact."""

    exit_code = 9


class ResourceError(LlambaError):
    """The machine does not have what is needed."""

    exit_code = 7


class OverloadedError(ResourceError):
    """Too many requests wait already, or the server is about to stop: try again later."""


class KernelError(ResourceError):
    """A kernel could not be compiled or loaded for this CPU."""


class DeviceError(ResourceError):
    """There is no GPU that can be used, it lacks memory, or a call of its driver failed."""


class DeviceLostError(DeviceError):
    """A GPU failed so that nothing runs on it in this process any more: it has to start again."""
