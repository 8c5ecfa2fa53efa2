"""gRPC's own Python tools against kilnd: health checks, and reflection as grpcurl uses it."""

import pytest
from conftest import Server

grpc = pytest.importorskip("grpc")
health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
health_pb2_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
reflection = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")

SERVICE = "kiln.v1.CompileService"
STATUS = health_pb2.HealthCheckResponse


def status_of(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def request(service):
    return health_pb2.HealthCheckRequest(service=service)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory):
    """Takes calls of programs that know nothing of Kiln's token files."""
    running = Server(tmp_path_factory.mktemp("open") / "data", "--anonymous-role=compile")
    yield running
    assert running.stop() == 0


@pytest.fixture
def channel(open_server):
    with grpc.insecure_channel(open_server.address) as channel:
        yield channel


def test_health_check(channel):
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(request("")).status == STATUS.SERVING
    assert health.Check(request(SERVICE)).status == STATUS.SERVING
    assert status_of(lambda: health.Check(request("nobody"))) == grpc.StatusCode.NOT_FOUND


def test_whoever_watches_sees_the_end_come(tmp_path):
    server = Server(tmp_path / "data")
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(request(SERVICE))
        unknown = health.Watch(request("nobody"))
        assert next(watch).status == STATUS.SERVING
        assert next(unknown).status == STATUS.SERVICE_UNKNOWN
        assert server.stop() == 0
        assert next(watch).status == STATUS.NOT_SERVING


def test_reflection_describes_what_can_be_called(channel):
    from google.protobuf import descriptor_pool, message_factory

    database = reflection.ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    service = descriptor_pool.DescriptorPool(database).FindServiceByName(SERVICE)
    method = service.methods_by_name["GetServerInfo"]
    call = channel.unary_unary(
        f"/{SERVICE}/GetServerInfo",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    info = call(message_factory.GetMessageClass(method.input_type)())
    assert info.version and info.workers >= 1
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("no.such.Thing")


def test_what_is_no_method_or_no_message(channel):
    def call(method, message):
        return lambda: channel.unary_unary(f"/{SERVICE}/{method}")(message)

    assert status_of(call("Nothing", b"")) == grpc.StatusCode.UNIMPLEMENTED
    assert status_of(call("GetServerInfo", b"\xff")) == grpc.StatusCode.INVALID_ARGUMENT
    assert status_of(call("Fetch", b"\xff")) == grpc.StatusCode.INVALID_ARGUMENT
