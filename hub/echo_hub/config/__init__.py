"""`run.toml`: everything an operator decides about a run, strict and documented field by field."""

from echo_hub.config.activation import ActivationSection
from echo_hub.config.dashboard import AlertsSection, DashboardSection
from echo_hub.config.guard import GuardSection
from echo_hub.config.learner import LearnerSection
from echo_hub.config.network import NetworkSection
from echo_hub.config.run import AuditSection, RunConfig, load_config
from echo_hub.config.tasks import (
    CurriculumSection,
    EvaluationSection,
    ScoringSection,
    TaskSection,
)

__all__ = [
    "ActivationSection",
    "AlertsSection",
    "AuditSection",
    "CurriculumSection",
    "DashboardSection",
    "EvaluationSection",
    "GuardSection",
    "LearnerSection",
    "NetworkSection",
    "RunConfig",
    "ScoringSection",
    "TaskSection",
    "load_config",
]
