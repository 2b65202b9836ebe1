"""Saves a spec's state with megatron.core.dist_checkpointing."""


def main():
    # Megatron starts helpers that import this file anew: they need none of this, and it takes seconds.
    import os

    from megatron.core import dist_checkpointing

    import common
    import mcore_state

    def work(spec, directory, rank, ranks):
        os.makedirs(directory, exist_ok=True)
        state = mcore_state.state_dict(spec, "write", rank, ranks, filled=True)
        backend = spec["backend"]
        dist_checkpointing.save(state, directory, (backend, 1) if backend else None)

    common.run(work, __doc__, ranks=2)


if __name__ == "__main__":
    main()
