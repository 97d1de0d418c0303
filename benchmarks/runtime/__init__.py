"""What the runtime costs, keeps and promises: live numbers, the twin against reality, policies, faults, and a soak."""
