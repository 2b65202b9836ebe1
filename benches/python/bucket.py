"""PyTorch DCP's writer and reader of buckets, through fsspec and s3fs."""

import os

import fsspec
from torch.distributed.checkpoint.fsspec_filesystem import FsspecReader, FsspecWriter

# Connections of one process, at most: more than any setting uses.
CONNECTIONS = 128


def options(setting):
    """What s3fs is made with; the environment has the rest."""
    chosen = {"default_block_size": setting.block and setting.block << 20, "default_cache_type": setting.cache}
    out = {name: value for name, value in chosen.items() if value}
    return out | {"config_kwargs": {"max_pool_connections": CONNECTIONS}}


def writer(path, setting):
    return FsspecWriter(path, thread_count=setting.threads, sync_files=False, **options(setting))


def reader(path, setting):
    return FsspecReader(path, **options(setting))


def remove(path):
    """Removes what lies there past the proxy, so that it is in nobody's counts."""
    fs = fsspec.filesystem("s3", endpoint_url=os.environ["RESHARD_BENCH_SERVER"], use_listings_cache=False,
                           skip_instance_cache=True)
    bucket, key, _ = fs.split_path(path)
    # s3s-fs has no answer to whether a folder exists, so that is not asked. A checkpoint has fewer files than a page of a listing.
    for found in fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=key + "/").get("Contents", []):
        fs.call_s3("delete_object", Bucket=bucket, Key=found["Key"])
