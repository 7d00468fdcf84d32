import torch, triton
import triton.language as tl
try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except Exception:
    gdc_wait = gdc_launch_dependents = None

# B rows padded to BM=16 · N outputs · K inputs

@triton.jit
def product(x, w, up, gain, residual, y, B, N, K, eps, x_stride, r_stride, y_stride,
            NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr):
    """y = residual + norm(x) w^T, or silu(norm(x) w^T) * (norm(x) up^T)."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.arange(0, BM)
    k = tl.arange(0, BK)
    n_ok = n < N
    m_ok = m < B
    acc = tl.zeros((BM, BN), tl.float32)
    acc2 = tl.zeros((BM, BN), tl.float32)
    sq = tl.zeros((BM,), tl.float32)
    wp = w + n[None, :].to(tl.int64) * K + k[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    for begin in tl.range(0, K, BK, num_stages=STAGES):
        xs = tl.load(x + m[:, None] * x_stride + begin + k[None, :], mask=m_ok[:, None], other=0.0)
        ws = tl.load(wp + begin)
        if NORM:
            xf = xs.to(tl.float32)
            sq += tl.sum(xf * xf, 1)
            g = tl.load(gain + begin + k)
            xs = (xf * g.to(tl.float32)[None, :]).to(ws.dtype)
        acc = tl.dot(xs, ws, acc)
        if GATED:
            us = tl.load(up + n[None, :].to(tl.int64) * K + k[:, None] + begin)
            acc2 = tl.dot(xs, us, acc2)
    if NORM:
        scale = 1.0 / tl.sqrt(sq / K + eps)
        acc = acc * scale[:, None]
        acc2 = acc2 * scale[:, None]
    if GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * acc2
    ok = m_ok[:, None] & n_ok[None, :]
    if ADD:
        acc += tl.load(residual + m[:, None] * r_stride + n[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(y + m[:, None] * y_stride + n[None, :], acc.to(y.dtype.element_ty), mask=ok)


@triton.jit
def product1(x, w, up, gain, residual, y, B, N, K, eps, x_stride, r_stride, y_stride,
            NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
            PF: tl.constexpr, LATE: tl.constexpr):
    """The same for one row, by multiplications and sums. The first weights are asked for before the wait."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    wp = w + n[:, None].to(tl.int64) * K + k[None, :]
    upp = up + n[:, None].to(tl.int64) * K + k[None, :]
    acc = tl.zeros((BN, BK), tl.float32)
    acc2 = tl.zeros((BN, BK), tl.float32)
    sq = tl.zeros((BK,), tl.float32)
    ws = tl.load(wp)
    if GATED:
        us = tl.load(upp)
    if PDL:
        if PF > 0:
            line = tl.arange(0, PF)
            tl.inline_asm_elementwise("{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [w + n[:, None].to(tl.int64) * K + BK + line[None, :] * 64], dtype=tl.int32, is_pure=False, pack=1)
            if GATED:
                tl.inline_asm_elementwise("{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [up + n[:, None].to(tl.int64) * K + BK + line[None, :] * 64], dtype=tl.int32, is_pure=False, pack=1)
        if not LATE:
            gdc_launch_dependents()
        gdc_wait()
    for begin in tl.range(0, K, BK, num_stages=1):
        xf = tl.load(x + begin + k).to(tl.float32)
        if NORM:
            sq += xf * xf
            xf = xf * tl.load(gain + begin + k).to(tl.float32)
        acc += ws.to(tl.float32) * xf[None, :]
        if GATED:
            acc2 += us.to(tl.float32) * xf[None, :]
        nxt = begin + BK
        ok = nxt < K
        ws = tl.load(wp + nxt, mask=ok, other=0.0)
        if GATED:
            us = tl.load(upp + nxt, mask=ok, other=0.0)
    if PDL:
        if LATE:
            gdc_launch_dependents()
    out = tl.sum(acc, 1)
    out2 = tl.sum(acc2, 1)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(sq) / K + eps)
        out = out * scale
        out2 = out2 * scale
    if GATED:
        out = out / (1.0 + tl.exp(-out)) * out2
    if ADD:
        out += tl.load(residual + n).to(tl.float32)
    tl.store(y + n, out.to(y.dtype.element_ty))


@triton.jit
def _turned(base, cos, sin, HALF: tl.constexpr):
    pass


@triton.jit
def attend(qkv, keys, values, table, lengths, cos_sin, part, part_ml, count, out,
           scale, table_stride, qkv_stride, out_stride,
           HG: tl.constexpr, HP: tl.constexpr, G: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr,
           PDL: tl.constexpr):
    """One new token per row: rotation, storing its key and value, attention over the blocks, splits joined by the last.

    qkv[B, G, HG + 2, D]; keys, values[blocks, SIZE, G, D]; lengths: tokens before this one. cos_sin[positions, D/2, 2]... fp32
    part[B, G, SPLITS, HP, D], part_ml[B, G, SPLITS, 2, HP], count[B, G]
    """
    row, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    HALF: tl.constexpr = D // 2
    h = tl.arange(0, HP)
    d = tl.arange(0, D)
    e = tl.arange(0, HALF)
    t = tl.arange(0, SIZE)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    length = tl.load(lengths + row)
    base = qkv + row * qkv_stride + group * (HG + 2) * D
    # rotation of halves: out[d] = x[d] cos[d % HALF] + sign(d) x[other half] sin
    c = tl.load(cos_sin + length * D + (d % HALF)).to(tl.float32)
    s = tl.load(cos_sin + length * D + HALF + (d % HALF)).to(tl.float32)
    s = tl.where(d < HALF, -s, s)
    other = (d + HALF) % D
    h_ok = h < HG
    q = tl.load(base + h[:, None] * D + d[None, :], mask=h_ok[:, None], other=0.0).to(tl.float32)
    qo = tl.load(base + h[:, None] * D + other[None, :], mask=h_ok[:, None], other=0.0).to(tl.float32)
    q = ((q * c[None, :] + qo * s[None, :]) * scale)
    kn = tl.load(base + HG * D + d).to(tl.float32) * c + tl.load(base + HG * D + other).to(tl.float32) * s
    vn = tl.load(base + (HG + 1) * D + d)
    kn16 = kn.to(keys.dtype.element_ty)
    blocks = (length + SIZE - 1) // SIZE
    per = (blocks + SPLITS - 1) // SPLITS
    first = split * per
    last = tl.minimum(first + per, blocks)
    m_i = tl.full((HP,), float("-inf"), tl.float32)
    l_i = tl.zeros((HP,), tl.float32)
    acc = tl.zeros((HP, D), tl.float32)
    if split == 0:
        at = tl.load(table + row * table_stride + length // SIZE).to(tl.int64)
        place = (at * SIZE + length % SIZE) * (G * D) + group * D
        tl.store(keys + place + d, kn16)
        tl.store(values + place + d, vn)
        m_i = tl.sum(q * kn16.to(tl.float32)[None, :], 1)
        l_i = tl.full((HP,), 1.0, tl.float32)
        acc = tl.zeros((HP, D), tl.float32) + vn.to(tl.float32)[None, :]
    q16 = q.to(keys.dtype.element_ty)
    for number in tl.range(first, last, num_stages=3):
        block = tl.load(table + row * table_stride + number).to(tl.int64)
        place = block * SIZE * (G * D) + group * D
        kt = tl.load(keys + place + t[None, :] * (G * D) + d[:, None])
        vt = tl.load(values + place + t[:, None] * (G * D) + d[None, :])
        ok = number * SIZE + t < length
        sc = tl.dot(q16, kt)
        sc = tl.where(ok[None, :], sc, float("-inf"))
        m_n = tl.maximum(m_i, tl.max(sc, 1))
        p = tl.exp(sc - m_n[:, None])
        p = tl.where(ok[None, :], p, 0.0)
        a = tl.exp(m_i - m_n)
        l_i = l_i * a + tl.sum(p, 1)
        # rows past the length may hold NaN of other sequences
        vt = tl.where(ok[:, None], vt, 0.0).to(vt.dtype)
        acc = acc * a[:, None] + tl.dot(p.to(vt.dtype), vt)
        m_i = m_n
    if SPLITS == 1:
        res = acc / l_i[:, None]
        tl.store(out + row * out_stride + group * HG * D + h[:, None] * D + d[None, :],
                 res.to(out.dtype.element_ty), mask=h_ok[:, None])
    else:
        cell = (row * G + group) * SPLITS + split
        tl.store(part + cell * HP * D + h[:, None] * D + d[None, :], acc)
        tl.store(part_ml + cell * 2 * HP + h, m_i)
        tl.store(part_ml + cell * 2 * HP + HP + h, l_i)
        tl.debug_barrier()
        before = tl.atomic_add(count + row * G + group, 1, sem="acq_rel")
        if before == SPLITS - 1:
            tl.store(count + row * G + group, 0)
            m_i = tl.full((HP,), float("-inf"), tl.float32)
            l_i = tl.zeros((HP,), tl.float32)
            acc = tl.zeros((HP, D), tl.float32)
            for i in range(SPLITS):
                cell = (row * G + group) * SPLITS + i
                m_p = tl.load(part_ml + cell * 2 * HP + h, volatile=True)
                l_p = tl.load(part_ml + cell * 2 * HP + HP + h, volatile=True)
                a_p = tl.load(part + cell * HP * D + h[:, None] * D + d[None, :], volatile=True)
                m_n = tl.maximum(m_i, m_p)
                a = tl.where(m_i == float("-inf"), 0.0, tl.exp(m_i - m_n))
                b = tl.where(m_p == float("-inf"), 0.0, tl.exp(m_p - m_n))
                l_i = l_i * a + l_p * b
                acc = acc * a[:, None] + a_p * b[:, None]
                m_i = m_n
            res = acc / l_i[:, None]
            tl.store(out + row * out_stride + group * HG * D + h[:, None] * D + d[None, :],
                     res.to(out.dtype.element_ty), mask=h_ok[:, None])
