"""Writes the files of this folder with the programs that write such files.

pip install h5py gguf onnx numpy msgpack tensorstore zarr
"""
import io, os, shutil, tarfile, zipfile

import gguf, h5py, msgpack, numpy as np, onnx, tensorstore as ts, zarr

os.chdir(os.path.dirname(os.path.abspath(__file__)))
w = np.arange(4, dtype=np.float32)

with h5py.File("weights.h5", "w", libver="latest") as f:
    f["w"] = w

g = gguf.GGUFWriter("llama.gguf", "llama")
g.add_tensor("w", w)
g.write_header_to_file(); g.write_kv_data_to_file(); g.write_tensors_to_file(); g.close()

x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [onnx.numpy_helper.from_array(w, "w")])
onnx.save(onnx.helper.make_model(graph, producer_name="pytorch", producer_version="2.15.0"), "net.onnx")
onnx.save(onnx.helper.make_model(graph), "plain.onnx")

np.savez("arrays.npz", w=w)
np.save("array.npy", w)

tarfile.RECORDSIZE = tarfile.BLOCKSIZE
with tarfile.open("files.tar", "w") as t:
    info = tarfile.TarInfo("w.bin"); info.size = 16
    t.addfile(info, io.BytesIO(w.tobytes()))

# As flax.serialization does: an array is extension type 1 with shape, name of the type and bytes.
def array(a):
    return msgpack.ExtType(1, msgpack.packb((a.shape, a.dtype.name, a.tobytes())))
with open("flax.msgpack", "wb") as f:
    f.write(msgpack.packb({"params": {"kernel": array(w)}}))

with zarr.storage.ZipStore("zipped.zarr.zip", mode="w") as store:
    zarr.create_group(store).create_array("w", data=w)

# As Keras 3 begins its archives.
with zipfile.ZipFile("net.keras", "w") as z:
    z.writestr("metadata.json", '{"keras_version": "3.11.3", "date_saved": "2026-01-01@00:00:00"}')
    z.writestr("config.json", "{}")

for kind, spec in {
    "n5": {"driver": "n5", "kvstore": {"driver": "file", "path": "n5/w"}},
    "ocdbt": {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": "file://" + os.getcwd() + "/ocdbt", "path": "w/"}},
}.items():
    shutil.rmtree(kind, ignore_errors=True)
    ts.open(spec, create=True, dtype=ts.float32, shape=[4]).result().write(w).result()
