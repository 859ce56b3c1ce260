; The host side of a call: `queue` and `call` of native.py, as built-in functions of Python (METH_FASTCALL).
;
; Records are arrays of 64-bit words, whose layouts native.py states: SEQUENCE, ENTRY, FAMILY, and rows of 4 (steps), 3
; (slots), 8 (graphs), 18 (operands of an entry, after its first 8 words) and 5 words (workspaces, after their number).
; A tensor is a DLTensor of 6 words: address, device, number of axes with dtype, shape, strides, byte offset. The stream
; is at byte 32 of a CUlaunchConfig, the class at byte 8 of a Python object.

declare i32 @cuCtxGetCurrent(ptr)
declare i32 @cuCtxSetCurrent(ptr)
declare i32 @cuLaunchKernelEx(ptr, i64, i64, i64)
declare i32 @cuMemsetD8Async(i64, i8, i64, i64)
declare i32 @cuGraphLaunch(i64, i64)
declare i32 @cuStreamIsCapturing(i64, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_Clear()
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare void @Py_DecRef(ptr)
@_Py_NoneStruct = external global i8
@_Py_FalseStruct = external global i8

; Issues the steps `start` to `stop` of a sequence on a stream, with the addresses of the regions and in the context of
; the sequence; the caller's context is current again afterwards, except that the context of GPU 0 stays where there was
; none. `whole`: a graph of these addresses may replace the steps. Returns 0 after a graph, 1 after launches, (index of
; the step) 2^34 + status 4 + 2 after a failure.
define i64 @issue(ptr %sequence, ptr %regions, i64 %stream, i64 %start, i64 %stop, i64 %whole) {
entry:
  %before = alloca ptr
  store ptr null, ptr %before
  %context = load ptr, ptr %sequence
  %c0 = call i32 @cuCtxGetCurrent(ptr %before)
  %other = load ptr, ptr %before
  %here = icmp eq ptr %other, %context
  br i1 %here, label %inside, label %enter
enter:
  %c1 = call i32 @cuCtxSetCurrent(ptr %context)
  %entered = icmp eq i32 %c1, 0
  br i1 %entered, label %inside, label %refused
refused:
  %c1w = zext i32 %c1 to i64
  %c1s = shl i64 %c1w, 2
  %c1r = or i64 %c1s, 2
  ret i64 %c1r
inside:
  %graphsp = getelementptr i64, ptr %sequence, i64 5
  %graphs = load ptr, ptr %graphsp
  %graphnp = getelementptr i64, ptr %sequence, i64 6
  %graphn = load i64, ptr %graphnp
  %looks = icmp ne i64 %whole, 0
  br i1 %looks, label %search, label %write
search:
  %n = phi i64 [ 0, %inside ], [ %n1, %unequal ]
  %none = icmp sge i64 %n, %graphn
  br i1 %none, label %write, label %compare
compare:
  %gat = mul i64 %n, 8
  %graph = getelementptr i64, ptr %graphs, i64 %gat
  %g0p = getelementptr i64, ptr %graph, i64 0
  %r0p = getelementptr i64, ptr %regions, i64 0
  %g0 = load i64, ptr %g0p
  %r0 = load i64, ptr %r0p
  %x0 = xor i64 %g0, %r0
  %o0 = or i64 %x0, 0
  %g1p = getelementptr i64, ptr %graph, i64 1
  %r1p = getelementptr i64, ptr %regions, i64 1
  %g1 = load i64, ptr %g1p
  %r1 = load i64, ptr %r1p
  %x1 = xor i64 %g1, %r1
  %o1 = or i64 %x1, %o0
  %g2p = getelementptr i64, ptr %graph, i64 2
  %r2p = getelementptr i64, ptr %regions, i64 2
  %g2 = load i64, ptr %g2p
  %r2 = load i64, ptr %r2p
  %x2 = xor i64 %g2, %r2
  %o2 = or i64 %x2, %o1
  %g3p = getelementptr i64, ptr %graph, i64 3
  %r3p = getelementptr i64, ptr %regions, i64 3
  %g3 = load i64, ptr %g3p
  %r3 = load i64, ptr %r3p
  %x3 = xor i64 %g3, %r3
  %o3 = or i64 %x3, %o2
  %g4p = getelementptr i64, ptr %graph, i64 4
  %r4p = getelementptr i64, ptr %regions, i64 4
  %g4 = load i64, ptr %g4p
  %r4 = load i64, ptr %r4p
  %x4 = xor i64 %g4, %r4
  %o4 = or i64 %x4, %o3
  %g5p = getelementptr i64, ptr %graph, i64 5
  %r5p = getelementptr i64, ptr %regions, i64 5
  %g5 = load i64, ptr %g5p
  %r5 = load i64, ptr %r5p
  %x5 = xor i64 %g5, %r5
  %o5 = or i64 %x5, %o4
  %g6p = getelementptr i64, ptr %graph, i64 6
  %r6p = getelementptr i64, ptr %regions, i64 6
  %g6 = load i64, ptr %g6p
  %r6 = load i64, ptr %r6p
  %x6 = xor i64 %g6, %r6
  %o6 = or i64 %x6, %o5
  %equal = icmp eq i64 %o6, 0
  br i1 %equal, label %replay, label %unequal
unequal:
  %n1 = add i64 %n, 1
  br label %search
replay:
  %handlep = getelementptr i64, ptr %graph, i64 7
  %handle = load i64, ptr %handlep
  %replayed = call i32 @cuGraphLaunch(i64 %handle, i64 %stream)
  %good = icmp eq i32 %replayed, 0
  br i1 %good, label %leave, label %write
write:
  %slotsp = getelementptr i64, ptr %sequence, i64 3
  %slots = load ptr, ptr %slotsp
  %slotnp = getelementptr i64, ptr %sequence, i64 4
  %slotn = load i64, ptr %slotnp
  br label %slot
slot:
  %m = phi i64 [ 0, %write ], [ %m1, %next ]
  %written = icmp sge i64 %m, %slotn
  br i1 %written, label %steps, label %next
next:
  %sat = mul i64 %m, 3
  %s = getelementptr i64, ptr %slots, i64 %sat
  %s1 = getelementptr i64, ptr %s, i64 1
  %s2 = getelementptr i64, ptr %s, i64 2
  %to = load ptr, ptr %s
  %where = load i64, ptr %s1
  %offset = load i64, ptr %s2
  %regionp = getelementptr i64, ptr %regions, i64 %where
  %region = load i64, ptr %regionp
  %address = add i64 %region, %offset
  store i64 %address, ptr %to, align 1
  %m1 = add i64 %m, 1
  br label %slot
steps:
  %rowsp = getelementptr i64, ptr %sequence, i64 1
  %rows = load ptr, ptr %rowsp
  br label %step
step:
  %i = phi i64 [ %start, %steps ], [ %i1, %issued ]
  %end = icmp sge i64 %i, %stop
  br i1 %end, label %leave, label %issue
issue:
  %first = mul i64 %i, 4
  %row = getelementptr i64, ptr %rows, i64 %first
  %row1 = getelementptr i64, ptr %row, i64 1
  %row2 = getelementptr i64, ptr %row, i64 2
  %row3 = getelementptr i64, ptr %row, i64 3
  %kind = load i64, ptr %row
  %x = load ptr, ptr %row1
  %y = load i64, ptr %row2
  %z = load i64, ptr %row3
  %fills = icmp eq i64 %kind, 1
  br i1 %fills, label %fill, label %launch
launch:
  %config = getelementptr i8, ptr %x, i64 32
  store i64 %stream, ptr %config
  %launched = call i32 @cuLaunchKernelEx(ptr %x, i64 %y, i64 %z, i64 0)
  br label %issued
fill:
  %pointer = load i64, ptr %x
  %byte = trunc i64 %y to i8
  %filled = call i32 @cuMemsetD8Async(i64 %pointer, i8 %byte, i64 %z, i64 %stream)
  br label %issued
issued:
  %status = phi i32 [ %launched, %launch ], [ %filled, %fill ]
  %i1 = add i64 %i, 1
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %step, label %failed
failed:
  %wide = zext i32 %status to i64
  %shifted = shl i64 %wide, 2
  %place = shl i64 %i, 34
  %failure = or i64 %shifted, %place
  %marked = or i64 %failure, 2
  br label %leave
leave:
  %result = phi i64 [ 0, %replay ], [ 1, %step ], [ %marked, %failed ]
  %indexp = getelementptr i64, ptr %sequence, i64 7
  %index = load i64, ptr %indexp
  %first_gpu = icmp eq i64 %index, 0
  %no_other = icmp eq ptr %other, null
  %default = and i1 %no_other, %first_gpu
  %stays = or i1 %here, %default
  br i1 %stays, label %exit, label %restore
restore:
  %c2 = call i32 @cuCtxSetCurrent(ptr %other)
  br label %exit
exit:
  ret i64 %result
}

; queue(sequence, stream, start, stop, whole, seven addresses) -> int
define ptr @queue(ptr %self, ptr %arguments, i64 %count) {
entry:
  %regions = alloca i64, i64 7
  %a0p = getelementptr ptr, ptr %arguments, i64 0
  %a0o = load ptr, ptr %a0p
  %a0 = call i64 @PyLong_AsLongLong(ptr %a0o)
  %a1p = getelementptr ptr, ptr %arguments, i64 1
  %a1o = load ptr, ptr %a1p
  %a1 = call i64 @PyLong_AsLongLong(ptr %a1o)
  %a2p = getelementptr ptr, ptr %arguments, i64 2
  %a2o = load ptr, ptr %a2p
  %a2 = call i64 @PyLong_AsLongLong(ptr %a2o)
  %a3p = getelementptr ptr, ptr %arguments, i64 3
  %a3o = load ptr, ptr %a3p
  %a3 = call i64 @PyLong_AsLongLong(ptr %a3o)
  %a4p = getelementptr ptr, ptr %arguments, i64 4
  %a4o = load ptr, ptr %a4p
  %a4 = call i64 @PyLong_AsLongLong(ptr %a4o)
  %a5p = getelementptr ptr, ptr %arguments, i64 5
  %a5o = load ptr, ptr %a5p
  %a5 = call i64 @PyLong_AsLongLong(ptr %a5o)
  %a6p = getelementptr ptr, ptr %arguments, i64 6
  %a6o = load ptr, ptr %a6p
  %a6 = call i64 @PyLong_AsLongLong(ptr %a6o)
  %a7p = getelementptr ptr, ptr %arguments, i64 7
  %a7o = load ptr, ptr %a7p
  %a7 = call i64 @PyLong_AsLongLong(ptr %a7o)
  %a8p = getelementptr ptr, ptr %arguments, i64 8
  %a8o = load ptr, ptr %a8p
  %a8 = call i64 @PyLong_AsLongLong(ptr %a8o)
  %a9p = getelementptr ptr, ptr %arguments, i64 9
  %a9o = load ptr, ptr %a9p
  %a9 = call i64 @PyLong_AsLongLong(ptr %a9o)
  %a10p = getelementptr ptr, ptr %arguments, i64 10
  %a10o = load ptr, ptr %a10p
  %a10 = call i64 @PyLong_AsLongLong(ptr %a10o)
  %a11p = getelementptr ptr, ptr %arguments, i64 11
  %a11o = load ptr, ptr %a11p
  %a11 = call i64 @PyLong_AsLongLong(ptr %a11o)
  %s0p = getelementptr i64, ptr %regions, i64 0
  store i64 %a5, ptr %s0p
  %s1p = getelementptr i64, ptr %regions, i64 1
  store i64 %a6, ptr %s1p
  %s2p = getelementptr i64, ptr %regions, i64 2
  store i64 %a7, ptr %s2p
  %s3p = getelementptr i64, ptr %regions, i64 3
  store i64 %a8, ptr %s3p
  %s4p = getelementptr i64, ptr %regions, i64 4
  store i64 %a9, ptr %s4p
  %s5p = getelementptr i64, ptr %regions, i64 5
  store i64 %a10, ptr %s5p
  %s6p = getelementptr i64, ptr %regions, i64 6
  store i64 %a11, ptr %s6p
  %sequence = inttoptr i64 %a0 to ptr
  %thread = call ptr @PyEval_SaveThread()
  %result = call i64 @issue(ptr %sequence, ptr %regions, i64 %a1, i64 %a2, i64 %a3, i64 %a4)
  call void @PyEval_RestoreThread(ptr %thread)
  %number = call ptr @PyLong_FromLongLong(i64 %result)
  ret ptr %number
}

; call(family, A, B, C, out) -> int: the result of `issue` for the first entry that fits, -1 if none does.
;
; 1. read the tensors; 2. find an entry with their devices, dtypes, shapes, strides and alignment; 3. check that the
; output is apart from the operands; 4. find the workspace of the current stream, which must not be captured; 5. issue.
define ptr @call(ptr %self, ptr %arguments, i64 %count) {
entry:
  %tensors = alloca i64, i64 24
  %kinds = alloca i64, i64 4
  %handle = alloca i64
  %capturing = alloca i32
  %familyo = load ptr, ptr %arguments
  %familyn = call i64 @PyLong_AsLongLong(ptr %familyo)
  %family = inttoptr i64 %familyn to ptr
  %countp = getelementptr i64, ptr %family, i64 0
  %entries = load i64, ptr %countp
  %listp = getelementptr i64, ptr %family, i64 1
  %list = load ptr, ptr %listp
  %readp = getelementptr i64, ptr %family, i64 2
  %read = load ptr, ptr %readp
  %streamp = getelementptr i64, ptr %family, i64 3
  %current = load ptr, ptr %streamp
  %typep = getelementptr i64, ptr %family, i64 4
  %type = load ptr, ptr %typep
  %parameterp = getelementptr i64, ptr %family, i64 5
  %parameter = load ptr, ptr %parameterp
  %negp = getelementptr i64, ptr %family, i64 6
  %is_neg = load ptr, ptr %negp
  %empty = icmp eq i64 %entries, 0
  br i1 %empty, label %miss, label %operand
operand:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %all = icmp eq i64 %i, 4
  br i1 %all, label %candidate, label %object
object:
  %i1 = add i64 %i, 1
  %argp = getelementptr ptr, ptr %arguments, i64 %i1
  %X = load ptr, ptr %argp
  %kindp = getelementptr i64, ptr %kinds, i64 %i
  %absent = icmp eq ptr %X, @_Py_NoneStruct
  br i1 %absent, label %without, label %typed
without:
  store i64 0, ptr %kindp
  br label %next
typed:
  %Xtypep = getelementptr i8, ptr %X, i64 8
  %Xtype = load ptr, ptr %Xtypep
  %is_tensor = icmp eq ptr %Xtype, %type
  %is_parameter = icmp eq ptr %Xtype, %parameter
  %plain = or i1 %is_tensor, %is_parameter
  br i1 %plain, label %view, label %miss
view:
  store i64 1, ptr %kindp
  %at = mul i64 %i, 6
  %tensor = getelementptr i64, ptr %tensors, i64 %at
  %readable = call i32 %read(ptr %X, ptr %tensor)
  %viewed = icmp eq i32 %readable, 0
  br i1 %viewed, label %sign, label %error
sign:
  %negative = call ptr @PyObject_Vectorcall(ptr %is_neg, ptr %argp, i64 1, ptr null)
  %answered = icmp ne ptr %negative, null
  br i1 %answered, label %signed, label %error
signed:
  call void @Py_DecRef(ptr %negative)
  %positive = icmp eq ptr %negative, @_Py_FalseStruct
  br i1 %positive, label %next, label %miss
next:
  br label %operand
error:
  call void @PyErr_Clear()
  br label %miss
candidate:
  %e = phi i64 [ 0, %operand ], [ %e1, %differs ]
  %exhausted = icmp sge i64 %e, %entries
  br i1 %exhausted, label %miss, label %compare
differs:
  %e1 = add i64 %e, 1
  br label %candidate
compare:
  %entryp = getelementptr ptr, ptr %list, i64 %e
  %entry_ = load ptr, ptr %entryp
  %regionsp = getelementptr i64, ptr %entry_, i64 1
  %regions = load ptr, ptr %regionsp
  br label %match
match:
  %j = phi i64 [ 0, %compare ], [ %j1, %matched ]
  %whole = icmp eq i64 %j, 4
  br i1 %whole, label %apart, label %one
one:
  %rat = mul i64 %j, 18
  %rat8 = add i64 %rat, 8
  %r = getelementptr i64, ptr %entry_, i64 %rat8
  %tat = mul i64 %j, 6
  %t = getelementptr i64, ptr %tensors, i64 %tat
  %regionp = getelementptr i64, ptr %regions, i64 %j
  %jkindp = getelementptr i64, ptr %kinds, i64 %j
  %jkind = load i64, ptr %jkindp
  %rkind = load i64, ptr %r
  %alike = icmp eq i64 %jkind, %rkind
  br i1 %alike, label %which, label %differs
which:
  %r1p = getelementptr i64, ptr %r, i64 1
  %r1 = load i64, ptr %r1p
  %tensor_ = icmp eq i64 %jkind, 1
  br i1 %tensor_, label %device, label %constant
constant:
  store i64 %r1, ptr %regionp
  br label %matched
device:
  %t1p = getelementptr i64, ptr %t, i64 1
  %t1 = load i64, ptr %t1p
  %devices = icmp eq i64 %t1, %r1
  br i1 %devices, label %types, label %differs
types:
  %t2p = getelementptr i64, ptr %t, i64 2
  %t2 = load i64, ptr %t2p
  %r2p = getelementptr i64, ptr %r, i64 2
  %r2 = load i64, ptr %r2p
  %same_types = icmp eq i64 %t2, %r2
  br i1 %same_types, label %axes, label %differs
axes:
  %r3p = getelementptr i64, ptr %r, i64 3
  %rank = load i64, ptr %r3p
  %t3p = getelementptr i64, ptr %t, i64 3
  %shape = load ptr, ptr %t3p
  %t4p = getelementptr i64, ptr %t, i64 4
  %strides = load ptr, ptr %t4p
  %strided = icmp ne ptr %strides, null
  br i1 %strided, label %axis, label %differs
axis:
  %d = phi i64 [ 0, %axes ], [ %d1, %axis_equal ]
  %axes_equal = icmp sge i64 %d, %rank
  br i1 %axes_equal, label %pointer, label %sizes
sizes:
  %d1 = add i64 %d, 1
  %d6 = add i64 %d, 6
  %d12 = add i64 %d, 12
  %np = getelementptr i64, ptr %shape, i64 %d
  %sp = getelementptr i64, ptr %strides, i64 %d
  %rnp = getelementptr i64, ptr %r, i64 %d6
  %rsp = getelementptr i64, ptr %r, i64 %d12
  %n = load i64, ptr %np
  %s = load i64, ptr %sp
  %rn = load i64, ptr %rnp
  %rs = load i64, ptr %rsp
  %n_equal = icmp eq i64 %n, %rn
  %s_equal = icmp eq i64 %s, %rs
  %both = and i1 %n_equal, %s_equal
  br i1 %both, label %axis_equal, label %differs
axis_equal:
  br label %axis
pointer:
  %data = load i64, ptr %t
  %t5p = getelementptr i64, ptr %t, i64 5
  %skipped = load i64, ptr %t5p
  %place = add i64 %data, %skipped
  %low = and i64 %place, 15
  %r4p = getelementptr i64, ptr %r, i64 4
  %r4 = load i64, ptr %r4p
  %aligned = icmp eq i64 %low, %r4
  %exists = icmp ne i64 %data, 0
  %usable = and i1 %aligned, %exists
  store i64 %place, ptr %regionp
  br i1 %usable, label %matched, label %differs
matched:
  %j1 = add i64 %j, 1
  br label %match
apart:
  %outp = getelementptr i64, ptr %regions, i64 3
  %out = load i64, ptr %outp
  %extentp = getelementptr i64, ptr %entry_, i64 67
  %extent = load i64, ptr %extentp
  %out_end = add i64 %out, %extent
  br label %overlap
overlap:
  %o = phi i64 [ 0, %apart ], [ %o1, %separate ]
  %distinct = icmp eq i64 %o, 3
  br i1 %distinct, label %where, label %near
near:
  %o1 = add i64 %o, 1
  %op = getelementptr i64, ptr %regions, i64 %o
  %begin = load i64, ptr %op
  %oat = mul i64 %o, 18
  %oat5 = add i64 %oat, 13
  %lengthp = getelementptr i64, ptr %entry_, i64 %oat5
  %length = load i64, ptr %lengthp
  %finish = add i64 %begin, %length
  %before = icmp ult i64 %begin, %out_end
  %after = icmp ult i64 %out, %finish
  %meets = and i1 %before, %after
  br i1 %meets, label %miss, label %separate
separate:
  br label %overlap
where:
  %devicep = getelementptr i64, ptr %entry_, i64 7
  %device_ = load i64, ptr %devicep
  %ordinal = trunc i64 %device_ to i32
  %known = call i32 %current(i32 2, i32 %ordinal, ptr %handle)
  %streams = icmp eq i32 %known, 0
  br i1 %streams, label %workspace, label %error
workspace:
  %stream = load i64, ptr %handle
  %arenasp = getelementptr i64, ptr %entry_, i64 3
  %arenas = load ptr, ptr %arenasp
  %workp = getelementptr i64, ptr %regions, i64 4
  %zerosp = getelementptr i64, ptr %regions, i64 5
  %preparedp = getelementptr i64, ptr %regions, i64 6
  %eprep = getelementptr i64, ptr %entry_, i64 2
  %prepared = load i64, ptr %eprep
  store i64 %prepared, ptr %preparedp
  store i64 0, ptr %workp
  store i64 0, ptr %zerosp
  %default = icmp eq i64 %stream, 0
  br i1 %default, label %uncaptured, label %query
query:
  store i32 1, ptr %capturing
  %queried = call i32 @cuStreamIsCapturing(i64 %stream, ptr %capturing)
  %captured = load i32, ptr %capturing
  %problem = or i32 %queried, %captured
  %free = icmp eq i32 %problem, 0
  br i1 %free, label %uncaptured, label %miss
uncaptured:
  %alone = icmp eq ptr %arenas, null
  br i1 %alone, label %go, label %arena
arena:
  %arenan = load i64, ptr %arenas
  %ework = getelementptr i64, ptr %entry_, i64 4
  %needed = load i64, ptr %ework
  %ezeros = getelementptr i64, ptr %entry_, i64 5
  %zeroed = load i64, ptr %ezeros
  br label %rows
rows:
  %a = phi i64 [ 0, %arena ], [ %a1, %elsewhere ]
  %unlisted = icmp sge i64 %a, %arenan
  br i1 %unlisted, label %miss, label %row
row:
  %a1 = add i64 %a, 1
  %aat = mul i64 %a, 5
  %aat1 = add i64 %aat, 1
  %w = getelementptr i64, ptr %arenas, i64 %aat1
  %wstream = load i64, ptr %w
  %listed = icmp eq i64 %wstream, %stream
  br i1 %listed, label %large, label %elsewhere
elsewhere:
  br label %rows
large:
  %w1p = getelementptr i64, ptr %w, i64 1
  %w2p = getelementptr i64, ptr %w, i64 2
  %w3p = getelementptr i64, ptr %w, i64 3
  %w4p = getelementptr i64, ptr %w, i64 4
  %w1 = load i64, ptr %w1p
  %w2 = load i64, ptr %w2p
  %w3 = load i64, ptr %w3p
  %w4 = load i64, ptr %w4p
  store i64 %w1, ptr %workp
  store i64 %w2, ptr %zerosp
  %enough_work = icmp sge i64 %w3, %needed
  %enough_zeros = icmp sge i64 %w4, %zeroed
  %enough = and i1 %enough_work, %enough_zeros
  br i1 %enough, label %go, label %miss
go:
  %matchedp = getelementptr i64, ptr %family, i64 7
  store i64 %e, ptr %matchedp
  %sequencep = getelementptr i64, ptr %entry_, i64 0
  %sequence = load ptr, ptr %sequencep
  %rowcountp = getelementptr i64, ptr %sequence, i64 2
  %rowcount = load i64, ptr %rowcountp
  %graphsp = getelementptr i64, ptr %entry_, i64 6
  %graphs = load i64, ptr %graphsp
  %thread = call ptr @PyEval_SaveThread()
  %done = call i64 @issue(ptr %sequence, ptr %regions, i64 %stream, i64 0, i64 %rowcount, i64 %graphs)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %return
miss:
  br label %return
return:
  %result = phi i64 [ %done, %go ], [ -1, %miss ]
  %number = call ptr @PyLong_FromLongLong(i64 %result)
  ret ptr %number
}
