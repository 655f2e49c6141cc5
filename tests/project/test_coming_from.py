"""Tests of the pages for users of other libraries: the keys, commands and links on them are valid."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from labrl.config.compose import compose
from labrl.errors import InputError
from labrl.mistakes.names import other_names

pytestmark = pytest.mark.extended

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("how-to/coming-from-slm-lab.md", "how-to/coming-from-alf.md")
TRIALS = (
    ["env=pong"],
    ["agent=dqn", "env=pong", "agent/memory=prioritized"],
    ["agent=dqn", "agent/target=polyak"],
    ["agent=recurrent_ppo"],
    ["agent=recurrent_dqn"],
    ["transforms/observation=normalize", "transforms/reward=normalize", "agent/self_imitation=replay"],
    ["agent=sac", "env=pendulum"],
    ["agent=td3", "env=pendulum"],
    ["agent=reinforce"],
    ["agent=a2c"],
)
OTHER_SECTIONS = {"Spec files", "Clock", "Modes", "Files", "Measures", "Schedulers"}
"""Sections whose tables do not list keys of the other library."""
OPTIONS = {
    "how-to/coming-from-slm-lab.md": """
        distributed rigorous_eval eval_frequency log_frequency max_session max_trial num_cpus num_gpus
        search_resources search_scheduler cuda_offset resume git_sha random_seed

        name num_envs max_t max_frame frame_op frame_op_len image_downsize reward_scale normalize_state
        normalize_obs normalize_reward clip_obs clip_reward device life_loss_info repeat_action_probability

        action_pdtype action_policy explore_var_spec gamma training_frequency center_return
        entropy_coef_spec policy_loss_coef training_start_step training_iter training_batch_iter lam
        num_step_returns val_loss_coef normalize_v_targets clip_eps_spec time_horizon minibatch_size
        training_epoch clip_vloss symlog normalize_advantages sil_replay_name sil_policy_loss_coef
        sil_val_loss_coef policy_delay target_entropy alpha_lr fixed_alpha alpha_anneal_frames
        entropy_anneal entropy_penalty_coef spectral_norm

        type shared use_same_optim hid_layers hid_layers_activation out_layer_activation init_fn
        clip_grad_val loss_spec optim_spec lr_scheduler_spec update_type update_frequency polyak_coef gpu
        log_std_init actor_init_std critic_init_std layer_norm batch_norm conv_hid_layers fc_hid_layers
        rnn_hidden_size rnn_num_layers bidirectional seq_len cell_type

        batch_size max_size use_cer alpha epsilon
    """,
    "how-to/coming-from-alf.md": """
        root_dir conf_file ml_type algorithm_ctor data_transformer_ctor random_seed no_thread_env_for_conf
        code_snapshots visualize_alf_tree

        num_iterations num_env_steps unroll_length unroll_with_grad use_root_inputs_for_after_train_iter
        async_unroll max_unroll_length unroll_queue_size unroll_step_interval unroll_parameter_update_period
        use_rollout_state temporally_independent_train_step mask_out_loss_for_last_step
        sync_progress_to_envs initial_collect_steps

        num_updates_per_train_iter mini_batch_length mini_batch_size whole_replay_buffer_training
        clear_replay_buffer replay_buffer_length priority_replay priority_replay_alpha priority_replay_beta
        priority_replay_eps normalize_importance_weights_by_max recent_data_ratio enable_checkpoint
        offline_buffer_dir offline_buffer_length rl_train_after_update_steps rl_train_every_update_steps
        empty_cache enable_amp ddp_paras_check_interval

        num_checkpoints confirm_checkpoint_upon_crash evaluate eval_interval num_evals num_eval_episodes
        num_eval_environments async_eval epsilon_greedy eval_uncertainty save_checkpoint_for_best_eval

        num_summaries summary_interval summarize_first_interval update_counter_every_mini_batch
        summaries_flush_secs summary_max_queue metric_min_buffer_size debug_summaries
        summarize_grads_and_vars summarize_gradient_noise_scale summarize_action_distributions
        summarize_output profiling
    """,
}
"""Keys of SLM Lab's spec and of ALF's TrainerConfig, by page."""
KEY = re.compile(r"(?:meta|agent|env|transforms)\.[a-z_]+(?:\.[a-z_]+)*")


def spans(page: str) -> list[str]:
    """Return all texts in backticks on a page."""
    return re.findall(r"`([^`]+)`", (DOCS / page).read_text())


@functools.cache
def composed() -> list[DictConfig]:
    return [compose(overrides) for overrides in TRIALS]


def has(node: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(node, DictConfig) or name not in node:
            return False
        node = node._get_node(name) if isinstance(node._get_node(name), DictConfig) else None
    return True


@pytest.mark.parametrize("page", PAGES)
def test_every_key_on_the_page_exists(page: str) -> None:
    keys = {key for span in spans(page) for key in KEY.findall(span)}
    assert len(keys) > 10
    assert not [key for key in sorted(keys) if not any(has(config, key) for config in composed())]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_the_page_composes(page: str) -> None:
    for command in spans(page):
        if command.startswith("labrl ") and "..." not in command and "<" not in command:
            overrides = [
                override for override in command.split()[1:] if not override.startswith(("+", "-", "hydra/"))
            ]
            # The first trial stands for all trials of an experiment.
            compose([override.partition(",")[0] for override in overrides])


@pytest.mark.parametrize("page", PAGES)
def test_every_link_on_the_page_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (DOCS / page).read_text()):
        assert ((DOCS / page).parent / target.partition("#")[0]).is_file(), target


def named_on(page: str) -> dict[str, list[str]]:
    """Return the other library's keys in the tables of a page, each with labrl's names in its rows."""
    found: dict[str, list[str]] = {}
    for section in (DOCS / page).read_text().split("\n## ")[1:]:
        if section.partition("\n")[0].strip("`") in OTHER_SECTIONS:
            continue
        for theirs, ours in re.findall(r"^\| (.+?) \| ?(.*?) ?\|", section, re.MULTILINE):
            spans = [span for text in re.findall(r"`([^`]+)`", ours) for span in braces(text)]
            for name in re.findall(r"`([a-z][a-z0-9_]*)(?:: [^`]*)?`", theirs):
                found.setdefault(name, []).extend(span.partition("=<")[0] for span in spans)
    return found


def braces(text: str) -> list[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`."""
    inner = re.search(r"\{(.*)\}", text)
    return [text.replace(inner[0], name) for name in inner[1].split(",")] if inner else [text]


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_the_other_library_is_answered_with_a_name_on_the_page(page: str) -> None:
    rows = named_on(page)
    assert set(OPTIONS[page].split()) <= rows.keys(), "options without a row"
    with pytest.raises(InputError) as caught:
        compose([f"{name}=1" for name in rows])
    mistakes = {mistake.key: mistake.message for mistake in caught.value.mistakes}
    assert mistakes.keys() == rows.keys()
    for name, ours in rows.items():
        assert name in other_names() or ours, f"{name} is neither on the page nor known"
        bare = mistakes[name].replace("/", ".")
        keys = [one.partition("=")[0].replace("/", ".") for one in ours]
        assert not keys or any(re.search(rf"(?<![\w.]){re.escape(key)}(?![\w])", bare) for key in keys), (
            f"{mistakes[name]} names none of {ours}"
        )
