import sys, os, time, itertools
sys.path.insert(0, os.path.dirname(__file__))
import torch, triton
import decode_kernels as dk
from proto_bench import bench_graph
torch.manual_seed(0); dev="cuda"; bf=torch.bfloat16
a=torch.empty(2**29,device=dev); b=torch.empty_like(a); ms=bench_graph(lambda: b.copy_(a)); COPY=2*a.numel()*4/ms/1e9; print("copy TB/s",round(COPY,2),flush=True); del a,b
SH={"1.1B":dict(L=16,H=16,G=8,dim=2048,ffn=8192,V=32768),"8B":dict(L=32,H=32,G=8,dim=4096,ffn=14336,V=32768)}
D=128; t0=time.time()
def call(cfg,x,w,u,gain,res,y,norm,gated,add,pdl,pf,late):
    BN,BK,W=cfg; N,K=w.shape
    dk.product1[(triton.cdiv(N,BN),)](x,w,u,gain,res,y,1,N,K,1e-5,x.stride(0),res.stride(0),y.stride(0),NORM=norm,GATED=gated,ADD=add,PDL=pdl,BM=16,BN=BN,BK=BK,STAGES=1,PF=pf,LATE=late,num_warps=W,launch_pdl=pdl)
for name in ("1.1B","8B"):
    s=SH[name]; dim,H,G,ffn,V,L=s["dim"],s["H"],s["G"],s["ffn"],s["V"],s["L"]; HG=H//G; SIZE=64; ctx=640
    mk=lambda *z: torch.randn(*z,device=dev,dtype=bf)*.02
    Wq=[mk((H+2*G)*D,dim) for _ in range(L)]; Wo=[mk(dim,H*D) for _ in range(L)]; Wg=[mk(ffn,dim) for _ in range(L)]; Wu=[mk(ffn,dim) for _ in range(L)]; Wd=[mk(dim,ffn) for _ in range(L)]
    head=mk(V,dim); emb=mk(V,dim); gain=torch.ones(dim,device=dev,dtype=bf)
    nb=sum(w.numel() for w in Wq+Wo+Wg+Wu+Wd)*2+head.numel()*2
    keys=mk(L,12,SIZE,G,D); vals=mk(L,12,SIZE,G,D); table=torch.arange(12,device=dev,dtype=torch.int32).view(1,12); lens=torch.full((1,),ctx,device=dev,dtype=torch.int32); cs=torch.randn(2048,D,device=dev)
    ids=torch.zeros(1,device=dev,dtype=torch.long); e=lambda n: torch.empty(1,n,device=dev,dtype=bf)
    x0,x1,qkv,mixed,hid,logits=e(dim),e(dim),e((H+2*G)*D),e(H*D),e(ffn),e(V)
    def step(cf,pd,pf,late,SP,parts,att=True,aw=4):
        part,ml,cnt=parts
        torch.index_select(emb,0,ids,out=x0)
        for l in range(L):
            call(cf["qkv"],x0,Wq[l],Wq[l],gain,x0,qkv,True,False,False,pd["qkv"],pf["qkv"],late)
            if att: dk.attend[(1,G,SP)](qkv,keys[l],vals[l],table,lens,cs,part,ml,cnt,mixed,D**-.5,12,qkv.stride(0),mixed.stride(0),HG=HG,HP=16,G=G,D=D,SIZE=SIZE,SPLITS=SP,PDL=pd["att"],num_warps=aw,launch_pdl=pd["att"])
            call(cf["out"],mixed,Wo[l],Wo[l],gain,x0,x1,False,False,True,pd["out"],pf["out"],late)
            call(cf["gu"],x1,Wg[l],Wu[l],gain,x1,hid,True,True,False,pd["gu"],pf["gu"],late)
            call(cf["down"],hid,Wd[l],Wd[l],gain,x1,x0,False,False,True,pd["down"],pf["down"],late)
        call(cf["head"],x0,head,head,gain,x0,logits,True,False,False,pd["head"],0,late)
        torch.argmax(logits,-1,out=ids)
    base=dict(qkv=(8,512,4),out=(8,512,4),gu=(8,512,4),down=(8,512,4),head=(8,512,4))
    allp=dict.fromkeys(("qkv","att","out","gu","down","head"),True); nop=dict.fromkeys(allp,False)
    z=dict.fromkeys(("qkv","out","gu","down"),0)
    def P(SP): return torch.zeros(1,G,SP,16,D,device=dev),torch.zeros(1,G,SP,2,16,device=dev),torch.zeros(1,G,device=dev,dtype=torch.int32)
    def show(tag,cf,pd,pf,late=False,SP=10,att=True,aw=4):
        try:
            pp=P(SP); ms=bench_graph(lambda: step(cf,pd,pf,late,SP,pp,att,aw),30)
            print(name,tag,"ms",round(ms,3),"tok/s",round(1e3/ms),"TB/s",round(nb/ms/1e9,2),"of copy",round(nb/ms/1e9/COPY,3),round(time.time()-t0),flush=True); return ms
        except Exception as ex: print(name,tag,"fail",repr(ex)[:200],flush=True); return 9e9
    show("no pdl",base,nop,z); show("no pdl, no attend",base,nop,z,att=False)
    show("pdl",base,allp,z); show("pdl late",base,allp,z,True)
    for q in (8,16,32):
        f=dict(qkv=q,out=q,gu=0,down=q); show(f"pdl pf{q}",base,allp,f); show(f"pdl late pf{q}",base,allp,f,True)
    for tag,on in (("att,out",("att","out")),("att,out,gu",("att","out","gu")),("all but att",("qkv","out","gu","down","head")),("all but down",("qkv","att","out","gu","head")),("all but gu",("qkv","att","out","down","head"))):
        pd={k:k in on for k in allp}; f=dict(qkv=16,out=16,gu=0,down=16); show("pdl "+tag+" pf16",base,pd,f); show("pdl late "+tag+" pf16",base,pd,f,True)
    f=dict(qkv=16,out=16,gu=0,down=16)
    for SP,aw in ((10,2),(5,4),(10,8),(2,4)): show(f"splits {SP} warps {aw} late",base,allp,f,True,SP,True,aw)
    best=None
    for what in ("qkv","out","gu","down","head"):
        for cfg in ((4,512,2),(4,1024,4),(8,1024,8),(16,512,8),(4,512,4),(2,1024,4),(8,256,2),(2,2048,8)):
            c=dict(base); c[what]=cfg; show(f"late {what} {cfg}",c,allp,f,True)
    del Wq,Wo,Wg,Wu,Wd,head,emb; torch.cuda.empty_cache()
