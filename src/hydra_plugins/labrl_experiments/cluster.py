"""hydra/launcher=submitit_local, submitit_slurm and ray: Hydra's own launchers, of which no trial takes
another with it. They are there only where their extra is installed."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from typing import Any

HAS_SUBMITIT = importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is not None
HAS_RAY = importlib.util.find_spec("hydra_plugins.hydra_ray_launcher") is not None

if HAS_SUBMITIT:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import LocalLauncher, SlurmLauncher

    class SubmititLocal(LocalLauncher):
        """Each trial a job of this machine, all at once, as a cluster would run it."""

        def launch_orders(
            self, orders: Sequence[Any], on_start: Callable[[int], None], on_end: Callable[[int, Any], None]
        ) -> int | None:
            """Submit the `labrl.lab.workers.Order`s and look after them; see `labrl.lab.submitted`."""
            from labrl.lab.submitted import run_jobs

            return run_jobs(self, "local", orders, on_end)

    class SubmititSlurm(SlurmLauncher):
        """Each trial a job of a SLURM array, put into the queue again when it is preempted or times out."""

        elsewhere = True
        """Whether trials run on other machines, of which this one's cores and GPUs say nothing."""

        def check(self) -> None:
            """Raises ConfigError where there is no SLURM."""
            from labrl.config.errors import ConfigError

            if shutil.which("srun") is None:
                raise ConfigError(
                    "hydra/launcher=submitit_slurm: there is no `srun` here, so this is no machine of a "
                    "SLURM cluster. Start it on a login node; hydra/launcher=joblib takes this machine"
                )

        def launch_orders(
            self, orders: Sequence[Any], on_start: Callable[[int], None], on_end: Callable[[int, Any], None]
        ) -> int | None:
            """Submit the `labrl.lab.workers.Order`s and look after them; see `labrl.lab.submitted`."""
            from labrl.lab.submitted import run_jobs

            return run_jobs(self, "slurm", orders, on_end)


if HAS_RAY:
    from hydra_plugins.hydra_ray_launcher.ray_launcher import RayLauncher

    class RayTrials(RayLauncher):
        """Each trial a task of a Ray cluster."""

        @property
        def elsewhere(self) -> bool:
            """Whether trials run on other machines: on those of a cluster that was there before."""
            return self.ray_cfg.init.get("address") not in (None, "local")

        def launch_orders(
            self, orders: Sequence[Any], on_start: Callable[[int], None], on_end: Callable[[int, Any], None]
        ) -> int | None:
            """Hand the `labrl.lab.workers.Order`s to Ray and look after them; see `labrl.lab.on_ray`."""
            from labrl.lab.on_ray import run_tasks

            return run_tasks(self, orders, on_end)
