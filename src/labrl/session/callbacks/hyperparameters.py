"""What TensorBoard's page of hyperparameters compares: the trials of an experiment by what was typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

from labrl.errors import LabrlError
from labrl.session.callbacks.callback import SessionView
from labrl.storage.experiment_folder import experiment_of
from labrl.storage.provenance import read_command, recorded_config
from labrl.storage.run_folder import RunFolder

_PLUGIN = "hparams"


def session_started(session: SessionView) -> Summary.Value | None:
    """The hyperparameters of a session of an experiment; None for one that belongs to none."""
    trial = session.folder.path.parent
    if experiment_of(trial) is None:
        return None
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    info = SessionStartInfo(group_name=trial.name, model_uri=str(session.folder.path))
    for name, value in chosen(RunFolder(trial)).items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = str(value)
    return _value("session_start_info", HParamsPluginData(session_start_info=info))


def session_ended(session: SessionView) -> Summary.Value | None:
    """How a session of an experiment ended; None for one that belongs to none."""
    if experiment_of(session.folder.path.parent) is None:
        return None
    from tensorboard.plugins.hparams.api_pb2 import Status
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    finished = session.clock.finished
    status = Status.Value("STATUS_SUCCESS" if finished else "STATUS_FAILURE")
    return _value("session_end_info", HParamsPluginData(session_end_info=SessionEndInfo(status=status)))


def chosen(run: RunFolder) -> dict[str, Any]:
    """What was typed for a trial, by key: numbers and words as they were resolved; and its seed."""
    try:
        config, words = recorded_config(run), read_command(run).overrides
    except LabrlError:  # a folder that is damaged is no reason not to train
        return {}
    found: dict[str, Any] = {"seed": config.get("seed")}
    for word in words:
        name, _, text = word.lstrip("+").partition("=")
        value = _leaf(config, name)
        found[name] = text if value is None or isinstance(value, Mapping | list) else value
    return {name: value for name, value in found.items() if name and value is not None}


def _leaf(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for name in key.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def _value(name: str, content: Any) -> Summary.Value:
    plugin = SummaryMetadata.PluginData(plugin_name=_PLUGIN, content=content.SerializeToString())
    return Summary.Value(tag=f"_hparams_/{name}", metadata=SummaryMetadata(plugin_data=plugin))
