import os; os.environ["TRITON_INTERPRET"]="1"
import torch, sys; sys.path.insert(0,"/work/main/.carry")
import decode_kernels as dk, triton
torch.manual_seed(0)
B,N,K=3,64,256
for b in (1,3):
    x=torch.randn(b,K); w=torch.randn(N,K)/16; u=torch.randn(N,K)/16; g=torch.rand(K)+.5; r=torch.randn(b,N)
    xn=x*torch.rsqrt((x*x).mean(-1,keepdim=True)+1e-5)*g
    for name in ("product","product1"):
        if name=="product1" and b>1: continue
        f=getattr(dk,name)
        for norm,gated,add in ((1,0,0),(0,0,1),(1,1,0)):
            y=torch.zeros(b,N)
            f[(triton.cdiv(N,16),)](x,w,u,g,r,y,b,N,K,1e-5,K,N,N,NORM=norm,GATED=gated,ADD=add,PDL=False,BM=16,BN=16,BK=64,STAGES=2,**({"PF":0,"LATE":False} if name=="product1" else {}))
            xx=xn if norm else x; e=xx@w.T
            if gated: e=torch.nn.functional.silu(e)*(xx@u.T)
            if add: e=e+r
            print(name,b,norm,gated,add,float((y-e).abs().max()))
# attention
G,HG,D,SIZE,B=2,2,16,16,3
lens=torch.tensor([0,17,40],dtype=torch.int32); nb=4
keys=torch.randn(20,SIZE,G,D); vals=torch.randn(20,SIZE,G,D); keys[19]=float("nan")
table=torch.randperm(19)[:12].view(3,4).int()
qkv=torch.randn(B,G,HG+2,D); theta=10000.
inv=theta**(-torch.arange(0,D//2)/(D//2)); ang=torch.arange(64)[:,None]*inv; cs=torch.cat([ang.cos(),ang.sin()],1).contiguous()
def rot(x,p):
    c,s=ang[p].cos(),ang[p].sin(); a,b=x[...,:D//2],x[...,D//2:]
    return torch.cat([a*c-b*s,b*c+a*s],-1)
exp=torch.zeros(B,G*HG,D)
for b in range(B):
    L=int(lens[b]); ks=keys[table[b].long()].flatten(0,1)[:L]; vs=vals[table[b].long()].flatten(0,1)[:L]
    for g in range(G):
        k=torch.cat([ks[:,g],rot(qkv[b,g,HG],L)[None]]); v=torch.cat([vs[:,g],qkv[b,g,HG+1][None]])
        for h in range(HG):
            q=rot(qkv[b,g,h],L); exp[b,g*HG+h]=torch.softmax(k@q/D**.5,0)@v
for S in (1,3):
    out=torch.zeros(B,G*HG,D); part=torch.zeros(B,G,S,16,D); ml=torch.zeros(B,G,S,2,16); cnt=torch.zeros(B,G,dtype=torch.int32)
    k2,v2=keys.clone(),vals.clone()
    dk.attend[(B,G,S)](qkv,k2,v2,table,lens,cs,part,ml,cnt,out,D**-.5,4,qkv.stride(0),out.stride(0),HG=HG,HP=16,G=G,D=D,SIZE=SIZE,SPLITS=S,PDL=False)
    print("attend",S,float((out-exp).abs().max()),cnt.sum().item())
