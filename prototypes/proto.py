import sys, os, json, time, itertools
sys.path.insert(0, os.path.dirname(__file__))
import torch, triton
import decode_kernels as dk
torch.manual_seed(0)
dev="cuda"; bf=torch.bfloat16
def bench_graph(fn, reps=20, warm=3):
    s=torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(2): fn()
    torch.cuda.current_stream().wait_stream(s); torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): fn()
    for _ in range(warm): g.replay()
    torch.cuda.synchronize(); ts=[]
    for _ in range(reps):
        a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
        a.record(); g.replay(); b.record(); torch.cuda.synchronize(); ts.append(a.elapsed_time(b))
    return sorted(ts)[len(ts)//2]
a=torch.empty(2*2**30,dtype=torch.int8,device=dev); b=torch.empty_like(a)
ms=bench_graph(lambda: b.copy_(a)); COPY=2*a.numel()/ms/1e9; print("copy TB/s",round(COPY,2),flush=True)
del a,b
t0=time.time()
SH={"1.1B":dict(L=16,H=16,G=8,dim=2048,ffn=8192,V=32768),"8B":dict(L=32,H=32,G=8,dim=4096,ffn=14336,V=32768)}
D=128
def call(kind,cfg,x,w,u,gain,res,y,B,norm,gated,add,pdl):
    BN,BK,W,S=cfg; N,K=w.shape
    f=dk.product1 if kind=="v" else dk.product
    f[(triton.cdiv(N,BN),)](x,w,u,gain,res,y,B,N,K,1e-5,x.stride(0),res.stride(0),y.stride(0),NORM=norm,GATED=gated,ADD=add,PDL=pdl,BM=16,BN=BN,BK=BK,STAGES=S,num_warps=W,num_stages=S,launch_pdl=pdl)
VC=[(4,1024,4,1),(4,2048,8,1),(8,512,4,1),(8,1024,8,1),(16,256,4,1),(16,512,8,1),(8,256,4,1),(4,512,2,1)]
DC=[(16,256,4,4),(16,128,4,6),(32,128,4,5),(16,256,2,4),(32,256,4,3),(64,128,4,4),(16,512,4,3),(32,64,4,8)]
best={}
for name in sys.argv[1].split(","):
    s=SH[name]; dim,H,G,ffn,V=s["dim"],s["H"],s["G"],s["ffn"],s["V"]
    shapes={"qkv":((H+2*G)*D,dim,True,False,False),"out":(dim,H*D,False,False,True),"gate_up":(ffn,dim,True,True,False),"down":(dim,ffn,False,False,True),"head":(V,dim,True,False,False)}
    for what,(N,K,norm,gated,add) in shapes.items():
        copies=max(4,int(400e6/(N*K*2*(2 if gated else 1))))
        ws=[torch.randn(N,K,device=dev,dtype=bf)*.02 for _ in range(copies)]; us=[torch.randn(N,K,device=dev,dtype=bf)*.02 for _ in range(copies)] if gated else ws
        gain=torch.ones(K,device=dev,dtype=bf)
        for B in (1,16):
            x=torch.randn(B,K,device=dev,dtype=bf); res=torch.randn(B,N,device=dev,dtype=bf); y=torch.empty(B,N,device=dev,dtype=bf)
            # reference
            xf=x.float(); xn=xf*torch.rsqrt((xf*xf).mean(-1,keepdim=True)+1e-5) if norm else xf
            e=xn@ws[0].float().T
            if gated: e=torch.nn.functional.silu(e)*(xn@us[0].float().T)
            if add: e=e+res.float()
            nbytes=copies*N*K*2*(2 if gated else 1)
            def cublas():
                for w,u in zip(ws,us):
                    torch.nn.functional.linear(x,w)
                    if gated: torch.nn.functional.linear(x,u)
            cb=nbytes/bench_graph(cublas,10)/1e9
            rows=[]
            for kind,cfgs in ((("v",VC),) if B==1 else ())+(("d",DC),):
                for cfg in cfgs:
                    if N%cfg[0] or K%cfg[1]: continue
                    try:
                        for pdl in (False,True):
                            call(kind,cfg,x,ws[0],us[0],gain,res,y,B,norm,gated,add,pdl)
                            err=float((y.float()-e).abs().max()/e.abs().max())
                            def go():
                                for w,u in zip(ws,us): call(kind,cfg,x,w,u,gain,res,y,B,norm,gated,add,pdl)
                            rows.append((round(nbytes/bench_graph(go,8)/1e9,2),kind,cfg,pdl,round(err,4)))
                    except Exception as ex: print("fail",what,kind,cfg,repr(ex)[:150],flush=True)
            rows.sort(key=lambda r:-r[0]); best[name,what,B]=rows[0][1:3] if rows else None
            print(name,what,B,"cublas",round(cb,2),"best",rows[:4],"nopdl",[r for r in rows if not r[3]][:1],"maxerr",max(r[4] for r in rows),round(time.time()-t0),flush=True)
        del ws,us
    # full step
    L=s["L"]; SIZE=64; ctx=640
    Wq=[torch.randn((H+2*G)*D,dim,device=dev,dtype=bf)*.02 for _ in range(L)]; Wo=[torch.randn(dim,H*D,device=dev,dtype=bf)*.02 for _ in range(L)]
    Wg=[torch.randn(ffn,dim,device=dev,dtype=bf)*.02 for _ in range(L)]; Wu=[torch.randn(ffn,dim,device=dev,dtype=bf)*.02 for _ in range(L)]; Wd=[torch.randn(dim,ffn,device=dev,dtype=bf)*.02 for _ in range(L)]
    head=torch.randn(V,dim,device=dev,dtype=bf)*.02; emb=torch.randn(V,dim,device=dev,dtype=bf)*.02; gain=torch.ones(dim,device=dev,dtype=bf)
    nb=sum(w.numel() for w in Wq+Wo+Wg+Wu+Wd)*2+head.numel()*2
    for B in (1,16):
        nblk=12*B; keys=torch.randn(L,nblk,SIZE,G,D,device=dev,dtype=bf); vals=torch.randn_like(keys)
        table=torch.arange(nblk,device=dev,dtype=torch.int32).view(B,12); lens=torch.full((B,),ctx,device=dev,dtype=torch.int32)
        cs=torch.randn(2048,D,device=dev); HG=H//G
        for SP in ((4,10) if B==1 else (1,2)):
            part=torch.zeros(B,G,SP,16,D,device=dev); ml=torch.zeros(B,G,SP,2,16,device=dev); cnt=torch.zeros(B,G,device=dev,dtype=torch.int32)
            ids=torch.zeros(B,device=dev,dtype=torch.long); x0=torch.empty(B,dim,device=dev,dtype=bf); x1=torch.empty_like(x0); qkv=torch.empty(B,(H+2*G)*D,device=dev,dtype=bf); mixed=torch.empty(B,H*D,device=dev,dtype=bf); hid=torch.empty(B,ffn,device=dev,dtype=bf); logits=torch.empty(B,V,device=dev,dtype=bf)
            for pdl in (False,True):
                bq,bo,bg,bd,bh=(best[name,w,B] for w in ("qkv","out","gate_up","down","head"))
                def step():
                    torch.index_select(emb,0,ids,out=x0)
                    for l in range(L):
                        call(*bq,x0,Wq[l],Wq[l],gain,x0,qkv,B,True,False,False,pdl)
                        dk.attend[(B,G,SP)](qkv,keys[l],vals[l],table,lens,cs,part,ml,cnt,mixed,D**-.5,12,qkv.stride(0),mixed.stride(0),HG=HG,HP=16,G=G,D=D,SIZE=SIZE,SPLITS=SP,PDL=pdl,num_warps=4,launch_pdl=pdl)
                        call(*bo,mixed,Wo[l],Wo[l],gain,x0,x1,B,False,False,True,pdl)
                        call(*bg,x1,Wg[l],Wu[l],gain,x1,hid,B,True,True,False,pdl)
                        call(*bd,hid,Wd[l],Wd[l],gain,x1,x0,B,False,False,True,pdl)
                    call(*bh,x0,head,head,gain,x0,logits,B,True,False,False,pdl)
                    torch.argmax(logits,-1,out=ids)
                try:
                    ms=bench_graph(step,30)
                    print("STEP",name,"B",B,"splits",SP,"pdl",pdl,"ms",round(ms,3),"tok/s",round(B*1e3/ms),"weights TB/s",round(nb/ms/1e9,2),"of copy",round(nb/ms/1e9/COPY,3),round(time.time()-t0),flush=True)
                except Exception as ex: print("step fail",repr(ex)[:300],flush=True)
    del Wq,Wo,Wg,Wu,Wd,head,emb; torch.cuda.empty_cache()
