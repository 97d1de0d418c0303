"""Load a PyTorch module from an archive, a factory or, on an explicit word, a pickle."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch

from sanderling.core.errors import ModelError, OptionError, WeightsError, first_line
from sanderling.core.files import sha256_of
from sanderling.model.manifest import Source
from sanderling.workshop.export.archive_guard import what_would_run
from sanderling.workshop.export.pickle_guard import PickleRefusedError, refusing_pickle
from sanderling.workshop.options import BuildOptions

_NAMED_KEYS = 5


def load_module(options: BuildOptions, path: Path) -> tuple[torch.nn.Module | torch.export.ExportedProgram, Source]:
    """Load the module that ``options.source`` names, in eval mode.

    Raises:
        ModelError: the file or the factory gives no module.
        OptionError: a file that would run code without ``--trust-pickle``, or a factory that does not exist.
        WeightsError: the checkpoint does not fit.
    """
    if ":" in options.source and not path.exists():
        module = _from_factory(options)
        digest = sha256_of(options.weights) if options.weights else None
        return module, Source(format="torch.module", name=options.source, sha256=digest)
    if not path.is_file():
        raise ModelError(f"{path} does not exist: expected a PyTorch file")
    if path.suffix == ".pt2":
        return _from_archive(path, options), Source(format="torch.export", name=path.name, sha256=sha256_of(path))
    return _from_pickle(path, options), Source(format="torch.pickle", name=path.name, sha256=sha256_of(path))


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """Read tensors from ``.safetensors``, or from ``.pt``/``.pth`` without running code from the file.

    Raises:
        WeightsError: the file is missing, unreadable, or holds more than tensors.
    """
    if not path.is_file():
        raise WeightsError(f"weights {path} do not exist: expected a .safetensors, .pt or .pth file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors: object = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise WeightsError(f"weights {path} cannot be read as plain tensors: {first_line(error)}") from error
    if isinstance(tensors, Mapping) and isinstance(tensors.get("state_dict"), Mapping):
        tensors = tensors["state_dict"]
    if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise WeightsError(f"weights {path} hold a {type(tensors).__name__}: expected a dictionary of tensors")
    return dict(tensors)


def load_weights(module: torch.nn.Module, checkpoint: dict[str, torch.Tensor], name: str) -> None:
    """Copy a checkpoint into a module; every key and every shape must match.

    Raises:
        WeightsError: keys are missing or unexpected, or a shape differs; the message says which.
    """
    own = module.state_dict()
    # BatchNorm's step counter is absent from checkpoints of PyTorch before 1.0, and inference never reads it.
    missing = [key for key in own if key not in checkpoint and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in checkpoint if key not in own]
    shapes = [
        f"{key} is {list(checkpoint[key].shape)}, expected {list(own[key].shape)}"
        for key in own
        if key in checkpoint and checkpoint[key].shape != own[key].shape
    ]
    problems = [
        f"{what}: {', '.join(keys[:_NAMED_KEYS])}"
        + (f" and {len(keys) - _NAMED_KEYS} more" if len(keys) > _NAMED_KEYS else "")
        for what, keys in (
            ("missing keys", missing),
            ("unexpected keys", unexpected),
            ("wrong shapes", shapes),
        )
        if keys
    ]
    if problems:
        raise WeightsError(f"weights {name} do not fit the module: {'; '.join(problems)}")
    module.load_state_dict(checkpoint, strict=False)


def _from_factory(options: BuildOptions) -> torch.nn.Module:
    module_name, _, attribute = options.source.partition(":")
    try:
        factory: object = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        where = "installed packages and the current folder"
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise OptionError(f"module '{module_name}' cannot be imported from {where}: {reason}") from error
    for part in attribute.split("."):
        if not hasattr(factory, part):
            raise OptionError(f"'{options.source}' names nothing: '{module_name}' has no '{attribute}'")
        factory = getattr(factory, part)
    if not callable(factory):
        raise OptionError(
            f"'{options.source}' is a {type(factory).__name__}: expected a function that returns a module"
        )
    torch.manual_seed(options.seed)
    try:
        module = factory(**options.factory_arguments)
    except (Exception, SystemExit) as error:
        raise ModelError(f"factory '{options.source}' failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"factory '{options.source}' returned a {type(module).__name__}: expected a torch.nn.Module")
    if options.weights is not None:
        load_weights(module, read_checkpoint(options.weights), options.weights.name)
    return module.eval()


def _from_archive(path: Path, options: BuildOptions) -> torch.export.ExportedProgram:
    try:
        reason = None if options.trust_pickle else what_would_run(path)
        if reason is None:
            with nullcontext() if options.trust_pickle else refusing_pickle():
                return torch.export.load(path)
    except PickleRefusedError as error:
        reason = f"a pickle that calls {error}"
    except Exception as error:
        raise ModelError(f"{path} is not a torch.export archive: {first_line(error)}") from error
    raise OptionError(
        f"{path} holds {reason}, and loading it would run code from the file: give --trust-pickle if you trust it"
    )


def _from_pickle(path: Path, options: BuildOptions) -> torch.nn.Module:
    if not options.trust_pickle:
        raise OptionError(
            f"{path} is a pickled file, and loading a pickled module runs code from it: give --trust-pickle if you "
            "trust it, or package.module:factory with --weights for a checkpoint"
        )
    try:
        module = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise ModelError(f"{path} cannot be unpickled: {first_line(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"{path} holds a {type(module).__name__}: expected a whole module; a checkpoint goes with "
            "package.module:factory --weights"
        )
    return module.eval()
