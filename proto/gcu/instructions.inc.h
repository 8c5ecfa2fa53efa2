// The GCU's instructions, machine profiles and types: the one table that assembler, simulator and
// compiler share. What each instruction does is in README.md beside this file.
//
// KILN_GCU_INSTRUCTIONS(X): X(code, name, mnemonic, operands, unit, cycles)
//
// `operands` has a letter for each operand, in the order of the text. In the binary each takes the
// next of the instruction's eight register bytes, but I, L and M:
//   S  scalar register, written      R  scalar register, read
//   D  tile register, its elements are written      T  tile register, its elements are read
//   C  tile register whose elements are read and written
//   N  tile register, its description is written    K  DMA token
//   A  small number, 0 to 255        I  64-bit number: the immediate
//   L  label, in the immediate: the number of an instruction of the same kernel
//   M  type of a tile, in the modifier: space | dtype << 4 | rank << 8
// `unit` is where it runs: Scalar, Sync, Dma, Vector, Matrix. `cycles` are those of a scalar
// instruction, or of a vector instruction for each 512 bytes of its widest operand.
//
// Codes are never given to another instruction: programs outlive versions.
#pragma once

#define KILN_GCU_INSTRUCTIONS(X)                       \
  X(0, Nop, "nop", "", Scalar, 1)                      \
  X(1, Halt, "halt", "", Scalar, 1)                    \
  X(2, LoadImmediate, "li", "SI", Scalar, 1)           \
  X(3, Move, "mov", "SR", Scalar, 1)                   \
  X(4, LoadArgument, "arg", "SI", Scalar, 4)           \
  X(5, Add, "add", "SRR", Scalar, 1)                   \
  X(6, Subtract, "sub", "SRR", Scalar, 1)              \
  X(7, Multiply, "mul", "SRR", Scalar, 1)              \
  X(8, FloorDivide, "div", "SRR", Scalar, 8)           \
  X(9, FloorModulo, "mod", "SRR", Scalar, 8)           \
  X(10, Minimum, "min", "SRR", Scalar, 1)              \
  X(11, Maximum, "max", "SRR", Scalar, 1)              \
  X(12, AddImmediate, "addi", "SRI", Scalar, 1)        \
  X(13, MultiplyImmediate, "muli", "SRI", Scalar, 1)   \
  X(14, Jump, "jmp", "L", Scalar, 1)                   \
  X(15, JumpEqual, "jeq", "RRL", Scalar, 1)            \
  X(16, JumpNotEqual, "jne", "RRL", Scalar, 1)         \
  X(17, JumpLess, "jlt", "RRL", Scalar, 1)             \
  X(18, JumpGreaterEqual, "jge", "RRL", Scalar, 1)     \
  X(19, Trap, "trap", "I", Scalar, 1)                  \
  X(32, Barrier, "barrier", "", Sync, 32)              \
  X(33, Wait, "wait", "K", Sync, 1)                    \
  X(34, WaitAll, "waitall", "", Sync, 1)               \
  X(48, Tile, "tile", "NMR", Scalar, 1)                \
  X(49, Dimension, "dim", "NARR", Scalar, 1)           \
  X(50, Address, "at", "NR", Scalar, 1)                \
  X(51, DimensionImmediate, "dimi", "NARI", Scalar, 1) \
  X(64, Copy, "dma", "DTK", Dma, 0)                    \
  X(65, CopyPadded, "dma.pad", "DTKRRRRR", Dma, 0)     \
  X(66, Gather, "dma.gather", "DTTK", Dma, 0)          \
  X(67, Scatter, "dma.scatter", "DTTK", Dma, 0)        \
  X(96, VectorCopy, "v.copy", "DT", Vector, 1)         \
  X(97, Convert, "v.cvt", "DT", Vector, 1)             \
  X(98, Negate, "v.neg", "DT", Vector, 1)              \
  X(99, Absolute, "v.abs", "DT", Vector, 1)            \
  X(100, Not, "v.not", "DT", Vector, 1)                \
  X(101, Floor, "v.floor", "DT", Vector, 1)            \
  X(102, Ceiling, "v.ceil", "DT", Vector, 1)           \
  X(103, Round, "v.round", "DT", Vector, 1)            \
  X(104, Truncate, "v.trunc", "DT", Vector, 1)         \
  X(105, Reciprocal, "v.recip", "DT", Vector, 4)       \
  X(106, SquareRoot, "v.sqrt", "DT", Vector, 4)        \
  X(107, ReciprocalRoot, "v.rsqrt", "DT", Vector, 4)   \
  X(108, Exponential, "v.exp", "DT", Vector, 4)        \
  X(109, Logarithm, "v.log", "DT", Vector, 4)          \
  X(110, Sine, "v.sin", "DT", Vector, 8)               \
  X(111, Cosine, "v.cos", "DT", Vector, 8)             \
  X(112, HyperbolicTangent, "v.tanh", "DT", Vector, 4) \
  X(113, ErrorFunction, "v.erf", "DT", Vector, 4)      \
  X(128, VectorAdd, "v.add", "DTT", Vector, 1)         \
  X(129, VectorSubtract, "v.sub", "DTT", Vector, 1)    \
  X(130, VectorMultiply, "v.mul", "DTT", Vector, 1)    \
  X(131, VectorDivide, "v.div", "DTT", Vector, 4)      \
  X(132, VectorMinimum, "v.min", "DTT", Vector, 1)     \
  X(133, VectorMaximum, "v.max", "DTT", Vector, 1)     \
  X(134, VectorPower, "v.pow", "DTT", Vector, 12)      \
  X(135, VectorModulo, "v.mod", "DTT", Vector, 8)      \
  X(136, VectorAnd, "v.and", "DTT", Vector, 1)         \
  X(137, VectorOr, "v.or", "DTT", Vector, 1)           \
  X(138, VectorXor, "v.xor", "DTT", Vector, 1)         \
  X(139, VectorEqual, "v.eq", "DTT", Vector, 1)        \
  X(140, VectorNotEqual, "v.ne", "DTT", Vector, 1)     \
  X(141, VectorLess, "v.lt", "DTT", Vector, 1)         \
  X(142, VectorLessEqual, "v.le", "DTT", Vector, 1)    \
  X(143, MultiplyAdd, "v.fma", "DTTT", Vector, 1)      \
  X(144, Select, "v.sel", "DTTT", Vector, 1)           \
  X(160, Fill, "v.fill", "DR", Vector, 1)              \
  X(161, Iota, "v.iota", "DAR", Vector, 1)             \
  X(162, ReduceSum, "v.rsum", "DT", Vector, 1)         \
  X(163, ReduceMaximum, "v.rmax", "DT", Vector, 1)     \
  X(164, ReduceMinimum, "v.rmin", "DT", Vector, 1)     \
  X(165, ReduceProduct, "v.rprod", "DT", Vector, 1)    \
  X(166, ArgMaximum, "v.argmax", "DTA", Vector, 2)     \
  X(167, ArgMinimum, "v.argmin", "DTA", Vector, 2)     \
  X(168, CumulativeSum, "v.cumsum", "DTA", Vector, 2)  \
  X(192, MatrixMultiply, "m.mul", "DTT", Matrix, 0)    \
  X(193, MatrixMultiplyAdd, "m.acc", "CTT", Matrix, 0)

// X(code, name, text, bytes)
#define KILN_GCU_DTYPES(X) \
  X(1, F32, "f32", 4)      \
  X(2, F16, "f16", 2)      \
  X(3, BF16, "bf16", 2)    \
  X(4, I32, "i32", 4)      \
  X(5, I8, "i8", 1)        \
  X(6, U8, "u8", 1)

// X(code, name, text)
#define KILN_GCU_SPACES(X) \
  X(0, L3, "l3")           \
  X(1, L2, "l2")           \
  X(2, L1, "l1")

// X(name, l3_bytes, l3_bytes_per_s, l2_bytes, l2_bytes_per_s, l1_bytes, cores, clock_hz,
//   f32_macs, f16_macs, i8_macs, launch_ns)
// MACs are of one core's matrix unit in a cycle; l2_bytes are those that programs can have.
#define KILN_GCU_PROFILES(X)                                                             \
  X("gcu-16m", int64_t{32} << 30, 100'000'000'000, int64_t{16} << 20, 1'000'000'000'000, \
    int64_t{1} << 20, 12, 1'000'000'000, 256, 512, 1024, 10'000)                         \
  X("gcu-s60", int64_t{24} << 30, 512'000'000'000, int64_t{60} << 20, 4'000'000'000'000, \
    int64_t{1} << 20, 12, 1'400'000'000, 1024, 4096, 8192, 10'000)

#define KILN_GCU_VECTOR_BYTES 512
#define KILN_GCU_SCALAR_REGISTERS 64
#define KILN_GCU_TILE_REGISTERS 64
#define KILN_GCU_TOKENS 16
#define KILN_GCU_MAX_RANK 4
